"""A new role is a folder under roles/, a module in provision/components/ and a line in a playbook, and nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import ENGINES
from tests.support.command import ROOT, Provision, with_own_state
from tests.support.engine import engine_host
from tests.support.new_role import FILE, add_role

LAB = f"role{os.getpid()}"
NODE = f"{LAB}-1"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program with the new role."""
    root = tmp_path_factory.mktemp("tree")
    for name in ("provision", "roles", "playbooks"):
        shutil.copytree(ROOT / name, root / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    add_role(root)
    return root


@pytest.fixture(scope="module")
def provision(tree: Path) -> Iterator[Provision]:
    """The command of that copy, and a lab with one bare node."""
    with with_own_state() as command:
        command.environment["PYTHONPATH"] = str(tree)
        try:
            command.ok("lab", "up", LAB, "--driver", "container", "--distro", "debian13", "--nodes", "1")
            ENGINES.add(engine_host(command.folder / "state/provision/labs" / LAB))
            yield command
        finally:
            down = command("lab", "down", LAB)
        assert down.code == 0, str(down)


def step(provision: Provision) -> dict[str, Any] | None:
    """Return the role's step of a plan."""
    [node] = provision.ok("plan", "--lab", LAB, "--only", "hello_world", "--json").document["nodes"]
    return next((one for one in node["steps"] if one["role"] == "hello_world"), None)


def apply(provision: Provision) -> str:
    """Apply the role; return what became of it."""
    [node] = provision.ok("apply", "--lab", LAB, "--only", "hello_world", "--yes", "--json").document["nodes"]
    return str(next(one["status"] for one in node["roles"] if one["role"] == "hello_world"))


def check(provision: Provision) -> str:
    """Return the status of the role's check; other roles were never applied, so verify fails."""
    [node] = provision("verify", "--lab", LAB, "--json").document["nodes"]
    return str(next(one["status"] for one in node["checks"] if one["id"] == "hello_world.greeting"))


def shell(provision: Provision, command: str) -> str:
    """Return the output of a command on the node."""
    return provision.ok("lab", "ssh", LAB, NODE, "--", command).out.strip()


@pytest.mark.slow
def test_a_new_role_is_planned_applied_repaired_verified_and_reset(provision: Provision) -> None:
    """From its first plan to its reset."""
    first = step(provision)
    assert first
    assert (first["class"], first["reason_codes"][0]["code"]) == ("safe", "plan.never_applied")
    assert check(provision) == "fail"

    assert apply(provision) == "changed"
    assert shell(provision, f"cat {FILE}") == "Hello world"
    assert step(provision) is None
    assert check(provision) == "pass"
    assert apply(provision) == "unchanged"

    shell(provision, f"rm {FILE}")
    drifted = step(provision)
    assert drifted
    assert {"code": "file.missing", "params": {"path": FILE}} in drifted["reason_codes"]
    assert {"code": "hello_world.greeting.missing", "params": {}} in drifted["reason_codes"]
    assert "there is no greeting" in drifted["reasons"]
    assert check(provision) == "fail"

    assert apply(provision) == "changed"
    assert check(provision) == "pass"

    inventory = Path(provision.ok("lab", "status", LAB, "--json").document["inventory"])
    variables = (inventory if inventory.is_dir() else inventory.parent) / "group_vars" / "all.yml"
    variables.parent.mkdir(exist_ok=True)
    with variables.open("a", encoding="utf-8") as file:
        file.write("\nhello_world_name: everybody\n")
    changed = step(provision)
    assert changed
    assert changed["reason_codes"] == [{"code": "plan.variable_changed", "params": {"name": "hello_world_name"}}]
    assert apply(provision) == "changed"
    assert shell(provision, f"cat {FILE}") == "Hello everybody"

    provision.ok("reset", "--lab", LAB, "--yes", "--json")
    assert shell(provision, f"test -e {FILE} || echo gone") == "gone"
    again = step(provision)
    assert again
    assert again["reason_codes"][0]["code"] == "plan.never_applied"
