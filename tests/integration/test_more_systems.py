"""Every system of the lab that the cluster of `test_systems` has no node of: from bare nodes to a job, and back.

A system that is added to the lab is tested here without a change of this file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from provision.lab.systems import SYSTEMS
from tests.integration import test_systems
from tests.support.command import Provision
from tests.support.node_state import differences, node_state
from tests.support.plain_ansible import changed_by_check_mode
from tests.support.recorded_systems import SystemRecorder, converged_roles

pytestmark = pytest.mark.long

LAB = f"more{os.getpid()}"
NODES = {
    system: f"{LAB}-{number}"
    for number, system in enumerate((name for name in SYSTEMS if name not in {*test_systems.NODES, "el8"}), 1)
}
"""System -> the name of its node."""

Shell = Callable[[str, str], str]


@pytest.fixture(scope="module")
def shell(provision: Provision) -> Iterator[Shell]:
    """Return the output of a command on a node of a lab with one node of each system; it must succeed."""
    words = ("--driver", "container", "--system", ",".join(NODES), "--nodes", str(len(NODES)), "--machine", "pair")

    def call(node: str, command: str) -> str:
        return provision.ok("lab", "ssh", LAB, node, "--", command).out

    try:
        provision.ok("lab", "up", LAB, *words, timeout=3600)
        yield call
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


def test_a_cluster_leads_from_bare_nodes_to_a_job_and_back(
    provision: Provision, shell: Shell, record_system: SystemRecorder
) -> None:
    """With one apply; the second changes nothing, verify passes, and reset restores the nodes."""
    for system, node in NODES.items():
        if SYSTEMS[system].rpm:  # the first transaction of dnf trusts the keys of all repositories, the site's too
            shell(node, f"rpm --import {test_systems.KEY}")
    before = {node: node_state(partial(shell, node)) for node in NODES.values()}
    first = _statuses(provision, "apply", "--yes", timeout=3600)
    second = _statuses(provision, "apply", "--yes")
    inventory = provision.ok("lab", "inventory", LAB).out.strip()
    check_mode = changed_by_check_mode(provision, inventory)
    provision.ok("verify", "--lab", LAB)
    job = provision.ok("run", "--lab", LAB, "--", "provision-smoke").out
    roles = {system: converged_roles(partial(shell, node)) for system, node in NODES.items()}
    provision.ok("reset", "--lab", LAB, "--yes")
    after = {node: node_state(partial(shell, node)) for node in NODES.values()}

    count = 2 * len(NODES)
    assert first == dict.fromkeys(NODES.values(), "changed")
    assert second == dict.fromkeys(NODES.values(), "unchanged")
    assert check_mode == dict.fromkeys(NODES.values(), 0)
    assert job.count(f"sum {count * (count + 1) // 2}") == count, job
    assert {node: differences(before[node], after[node]) for node in after} == {node: [] for node in after}
    for system, names in roles.items():
        record_system(system, names)


def _statuses(provision: Provision, *words: str, **options: Any) -> dict[str, str]:
    nodes = provision.ok(words[0], "--lab", LAB, *words[1:], "--json", **options).document["nodes"]
    return {node["name"]: node["status"] for node in nodes}
