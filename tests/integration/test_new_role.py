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

LAB = f"role{os.getpid()}"
NODE = f"{LAB}-1"
FILE = "/etc/hello-world"
FOLDER = {
    "defaults/main.yml": "hello_world_enabled: true\nhello_world_name: world\n",
    "meta/main.yml": "galaxy_info: {author: a, description: d, license: l, min_ansible_version: '2.16'}\n"
    "dependencies: [platform]\n",
    "meta/argument_specs.yml": """
argument_specs:
  main:
    short_description: Greets.
    options:
      hello_world_enabled: {type: bool, description: Whether this role runs.}
      hello_world_name: {type: str, description: Whom to greet.}
""",
    "tasks/main.yml": f"""
- name: Write the greeting
  platform_files:
    files: [{{path: {FILE}, content: "Hello {{{{ hello_world_name }}}}\\n"}}]
  tags: [hello_world_configure]

- name: Receipt
  ansible.builtin.include_role: {{name: platform, tasks_from: receipt}}
  vars:
    platform_receipt_role: hello_world
    platform_receipt_files: [{FILE}]
  tags: [hello_world_receipt]
""",
}
COMPONENT = f"""
from provision.components.base import Component
from provision.components.check import Check, Scene, Verdict, fail, known, passed
from provision.model.reason import Wording


def _greeting(scene: Scene) -> Verdict:
    files = known(scene.facts.managed).observed.get("hello_world", {{}}).get("files", {{}})
    if files.get("{FILE}", {{}}).get("type") == "file":
        return passed("hello_world.greeting.ok")
    return fail("hello_world.greeting.missing")


COMPONENT = Component(
    role="hello_world",
    after=("base_system",),
    files=lambda variables, facts: ["{FILE}"],
    checks=(Check("hello_world.greeting", _greeting),),
    reasons={{
        "hello_world.greeting.ok": Wording("the greeting exists"),
        "hello_world.greeting.missing": Wording("there is no greeting", "Run: provision apply --limit {{node}}"),
    }},
)
"""
WHEN = "hello_world_enabled | bool and 'hello_world' not in __platform_left_out"
LINE = f'    - {{role: hello_world, tags: [hello_world], when: "{WHEN}"}}\n'


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program with the new role."""
    root = tmp_path_factory.mktemp("tree")
    for name in ("provision", "roles", "playbooks"):
        shutil.copytree(ROOT / name, root / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for path, text in FOLDER.items():
        file = root / "roles/hello_world" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (root / "provision/components/hello_world.py").write_text(COMPONENT, encoding="utf-8")
    playbook = root / "playbooks/nodes.yml"
    before, role, after = playbook.read_text(encoding="utf-8").partition("    - {role: rdma_stack")
    playbook.write_text(before + LINE + role + after, encoding="utf-8")
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
