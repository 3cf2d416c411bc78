"""Receipts that the previous version wrote: the same nodes, and the only reason for a step is the upgrade."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

from provision import workflow
from provision.components import ROLES
from provision.facts import RawOutput
from provision.facts.managed import Managed
from provision.facts.records import Receipt, ReceiptsFact
from provision.inventory import load
from provision.model.cause import CauseKind
from provision.planning import PlanScene
from provision.planning.differences import differences
from provision.planning.steps import causes_of
from provision.workflow.sources import role_sources
from tests.support.previous_version import STATE, private_copy
from tests.unit.checks.conftest import healthy
from tests.unit.facts.conftest import Node

RECORDED = tuple(role for role in ROLES if role not in {"nvidia_driver", "fabric_host", "kernel", "package_cache"})
"""The roles of the previous version."""
JUDGED_NOW = {CauseKind.CHECK, CauseKind.NEED, CauseKind.PARTNER}
"""Causes that come from other facts than receipts."""


@pytest.fixture
def managed(node: Node, engine: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> Managed:
    """The result of a probe of the node on which the previous version wrote the receipts."""
    root, answers = node.root / "recorded", STATE / "node/answers"
    shutil.copytree(STATE / "node/root", root)
    (root / "etc/provision/job-agent.json").chmod(0o600)
    shutil.rmtree(node.folder)
    private_copy(STATE / "node/receipts", node.folder)
    for name in ("dpkg-query", "systemctl"):
        node.program(name, f"exec cat {answers / name}")
    engine |= json.loads((answers / "docker.json").read_text())
    (node.root / "modules/ib_uverbs").mkdir(parents=True)
    monkeypatch.chdir(root)
    places = {"SYS_MODULES": "modules", "DOCKER_SOCKET": "docker.sock"}
    return node.look(";".join(f's,^{key} = .*,{key} = "{node.root}/{name}",' for key, name in places.items()))


def receipts() -> dict[str, Receipt]:
    """The receipts as the fact returns them."""
    files = sorted((STATE / "node/receipts").glob("*.json"))
    text = "".join(f"{file.name}:{line}\n" for file in files for line in file.read_text().splitlines())
    return dict(ReceiptsFact().parse(RawOutput(text, 0)))


@pytest.mark.skipif(os.geteuid() != 0, reason="the recorded files belong to root")
def test_receipts_of_the_previous_version_match_an_unchanged_node(managed: Managed) -> None:
    """Otherwise an upgrade would report drift of everything that a role manages."""
    recorded = receipts()

    assert set(recorded) == set(managed.observed) == set(RECORDED)
    assert {role for role, sealed in managed.sealed.items() if not sealed} == set()
    assert {role: receipt.error for role, receipt in recorded.items() if receipt.error} == {}
    causes = [cause for role in RECORDED for cause in differences(recorded[role].content, managed.observed[role], "")]
    assert causes == []


@pytest.mark.skipif(os.geteuid() != 0, reason="the recorded files belong to root")
def test_the_plan_after_an_upgrade_names_the_changed_roles_only(managed: Managed, tmp_path: Path) -> None:
    """Unchanged variables are no reason; base_system is in the plan, which replaces the node agent."""
    private_copy(STATE / "controller/inventories", tmp_path / "inventories")
    cluster = workflow.with_defaults(load(tmp_path / "inventories/prod"))
    facts = dataclasses.replace(healthy(1), receipts=receipts(), managed=managed)
    scene = PlanScene(cluster.node("gpu1"), facts, cluster, {"gpu1": facts}, sources=role_sources())

    kinds = {role: {cause.kind for cause in causes} - JUDGED_NOW for role, causes in causes_of(scene).items()}

    assert {role: own for role, own in kinds.items() if own - {CauseKind.CODE}} == {}
    assert CauseKind.CODE in kinds["base_system"]
