"""The role `hello_world`, and its addition to a copy of the program: a folder, a module and a line in a playbook."""

from __future__ import annotations

from pathlib import Path

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
  ansible.builtin.import_role: {{name: platform, tasks_from: receipt, rolespec_validate: false}}
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


def add_role(root: Path) -> None:
    """Add the role to a copy of the program."""
    for path, text in FOLDER.items():
        file = root / "roles/hello_world" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (root / "provision/components/hello_world.py").write_text(COMPONENT, encoding="utf-8")
    playbook = root / "playbooks/nodes.yml"
    before, role, after = playbook.read_text(encoding="utf-8").partition("    - {role: rdma_stack")
    playbook.write_text(before + LINE + role + after, encoding="utf-8")
