"""Runs for chosen steps: the playbooks as they are, run by Ansible with roles that only say that they ran."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.expressions import ROLES

PLAYBOOKS = ROLES.parent / "playbooks"
SAY = """
- ansible.builtin.copy:
    dest: "{folder}/{{{{ inventory_hostname }}}}.{{{{ ansible_play_name }}}}.{name}"
    content: "{{{{ {value} | to_json }}}}"
    mode: "0644"
"""
LOOK = """
- ansible.builtin.set_fact:
    platform_node: {gpus_present: true, packages: {}, memlock_limit: -1, nofile_limit: -1}
    platform_taking_part: "{{ __platform_taking_part }}"
- ansible.builtin.include_vars: debian_13.yml
"""
VALUES = {
    "platform": "__platform_role_packages",
    "docker_engine": "__docker_engine_settings",
    "training_container": "__platform_disruptive",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The playbooks, and the roles' variables, with tasks that leave a file."""
    shutil.copytree(PLAYBOOKS, tmp_path / "playbooks")
    for role in ROLES.glob("*/meta"):
        folder = tmp_path / "roles" / role.parent.name
        for part in ("defaults", "vars", "templates", "filter_plugins"):
            if (role.parent / part).is_dir():
                shutil.copytree(role.parent / part, folder / part)
        (folder / "tasks").mkdir()
        say = SAY.format(folder=tmp_path, name=folder.name, value=VALUES.get(folder.name, "'ran'"))
        (folder / "tasks" / "main.yml").write_text((LOOK if folder.name == "platform" else "") + say)
    receipts = SAY.format(folder=tmp_path, name="receipts", value="__platform_fingerprints")
    (tmp_path / "roles/platform/tasks/receipts.yml").write_text(receipts)
    (tmp_path / "hosts.yml").write_text("gpu_nodes: {hosts: {gpu1: {}, gpu2: {}}, vars: {ansible_connection: local}}\n")
    return tmp_path


def play(site: Path, playbook: str, **extra: Any) -> dict[str, Any]:
    """Run a playbook; return what each role said on each node."""
    extra |= {"ansible_become": False, "ansible_python_interpreter": sys.executable}
    program = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [program, "-i", site / "hosts.yml", site / "playbooks" / playbook, "--extra-vars", json.dumps(extra)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ANSIBLE_ROLES_PATH": str(site / "roles"), "ANSIBLE_LOCALHOST_WARNING": "false"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name: json.loads(path.read_text()) for path in site.glob("gpu*")}


def test_a_node_runs_only_its_own_steps(site: Path) -> None:
    """Roles that are no step of a node are left out there with their packages; all nodes are probed.

    What nvidia_container would offer to docker is offered where it is left out, and jobs may be disturbed where the
    operator says so.
    """
    always = ("platform", "receipts")
    steps = {"gpu1": ["training_container"], "gpu2": ["base_system", "docker_engine", "training_container"]}
    (site / "fingerprints").mkdir()
    for name in steps:
        (site / "fingerprints" / f"{name}.json").write_text(json.dumps({"base_system": {"code": name}}))

    said = play(
        site,
        "site.yml",
        _platform_steps=steps,
        _platform_fingerprints_folder=str(site / "fingerprints"),
        _platform_disruptive=["gpu2"],
    )

    assert set(said) == {
        *(f"{name}.{stage}.{role}" for name in steps for stage in ("Nodes", "Containers") for role in always),
        *("gpu2.Nodes.base_system", "gpu2.Nodes.docker_engine"),
        *("gpu1.Containers.training_container", "gpu2.Containers.training_container"),
    }
    packages = [set(said[f"{name}.Nodes.platform"]) for name in steps]
    assert packages == [{"platform"}, {"platform", "base_system", "docker_engine"}]
    assert said["gpu2.Nodes.docker_engine"]["runtimes"] == {
        "nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}
    }
    assert said["gpu2.Nodes.receipts"] == {"base_system": {"code": "gpu2"}}
    assert [said[f"{name}.Containers.training_container"] for name in steps] == [False, True]
