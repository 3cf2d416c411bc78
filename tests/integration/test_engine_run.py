"""The engine with real Ansible on this machine alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provision import engine
from provision.inventory.settings import reading_environment
from provision.local_processes import descendants
from provision.model import Difference, NodeStatus
from provision.report.apply_report import as_text

HOSTS = "here ansible_connection=local ansible_python_interpreter=/usr/bin/python3\n"
CALL = "from pathlib import Path; from provision.engine import run_playbook; run_playbook(Path('hosts'), ['here'])"


@pytest.fixture
def playbook(tmp_path, monkeypatch):
    """Write one task as the playbook that the engine runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROVISION_PLAYBOOKS", str(tmp_path))
    monkeypatch.delenv("ANSIBLE_HOST_KEY_CHECKING", raising=False)
    (tmp_path / "hosts").write_text(HOSTS)
    (tmp_path / "ansible.cfg").write_text("[defaults]\n")

    def write(task: str) -> None:
        (tmp_path / "site.yml").write_text(f"- hosts: all\n  gather_facts: false\n  tasks:\n    - {task}\n")

    return write


def test_ansible_checks_host_keys(playbook):
    """ansible-runner would switch the check off; with the engine Ansible has it on."""
    playbook("assert: {that: \"lookup('config', 'HOST_KEY_CHECKING')\"}")
    report = engine.run_playbook(Path("hosts"), ["here"])
    assert [(node.status, node.error) for node in report.nodes] == [(NodeStatus.UNCHANGED, None)]


THREE = "".join(f"{name} {HOSTS.partition(' ')[2]}" for name in "abc")


def test_nodes_stopped_by_a_failed_run_once_task_have_failed(playbook):
    """Ansible says nothing about them; the report names what stopped them."""
    Path("hosts").write_text(THREE)
    playbook("{name: Look at the image, command: 'false', run_once: true}\n    - command: 'true'")
    report = engine.run_playbook(Path("hosts"), ["a", "b", "c"])

    assert [node.status for node in report.nodes] == [NodeStatus.FAILED] * 3
    assert "stopped: this failed on a: " in report.nodes[1].error.message
    assert report.nodes[1].error.task == "Look at the image"


def test_a_failed_node_does_not_stop_the_other_nodes(playbook):
    """Also when a handler has to run on it afterwards, and when another node has no task after that."""
    Path("hosts").write_text(THREE)
    playbook(
        "{command: 'true', notify: again}\n"
        "    - {command: \"{{ (inventory_hostname == 'a') | ternary('false', 'true') }}\", "
        "when: inventory_hostname != 'c', changed_when: false}\n"
        "  force_handlers: true\n"
        "  handlers: [{name: again, command: 'true'}]"
    )
    report = engine.run_playbook(Path("hosts"), ["a", "b", "c"])

    assert [str(node.status) for node in report.nodes] == ["failed", "changed", "changed"]
    assert "stopped" not in report.nodes[0].error.message


def test_handlers_on_a_stopped_node_do_not_hide_the_failed_task(playbook):
    """They run on every failed node, and the task that stopped it is still named."""
    Path("hosts").write_text(THREE)
    playbook(
        "{command: 'true', notify: again}\n"
        "    - {name: Only once, command: 'false', run_once: true}\n"
        "  force_handlers: true\n"
        "  handlers: [{name: again, command: 'true'}]"
    )
    report = engine.run_playbook(Path("hosts"), ["a", "b", "c"])

    assert [(str(node.status), node.error.task) for node in report.nodes] == [("failed", "Only once")] * 3


def _vault(text: str, password: str) -> str:
    """Encrypt as ``ansible-vault encrypt_string`` does."""
    program = str(Path(sys.executable).parent / "ansible-vault")
    argv = [program, "encrypt_string", "--vault-password-file", password, text]
    return subprocess.run(argv, check=True, capture_output=True, text=True, env={**os.environ}).stdout


def _operators_folder(tmp_path: Path) -> Path:
    """Make a folder with an ansible.cfg that names a vault password, and an inventory with a vaulted variable."""
    folder = tmp_path / "operator"
    folder.mkdir()
    (folder / "pw").write_text("hunter2\n")
    (folder / "ansible.cfg").write_text("[defaults]\nvault_password_file = pw\nhost_key_checking = False\n")
    word = _vault("plaintext", str(folder / "pw"))
    line = "{ansible_connection: local, ansible_python_interpreter: /usr/bin/python3}"
    (folder / "hosts.yml").write_text(
        f"all:\n  hosts:\n    here: {line}\n  vars:\n    word: {word.replace(chr(10), chr(10) + '    ')}\n"
    )
    return folder


@pytest.mark.parametrize("by_environment", [False, True])
def test_playbooks_read_the_inventory_with_the_settings_of_the_operator(
    playbook, tmp_path, monkeypatch, by_environment
):
    """The vault password of the operator's ansible.cfg, or a relative one of the environment, opens vaults there too.

    What that file says about host keys is not taken over.
    """
    playbook(
        "assert: {that: [\"word == 'plaintext'\", \"lookup('config', 'HOST_KEY_CHECKING')\", "
        "\"lookup('file', lookup('env', 'PWD') ~ '/pw') == 'hunter2'\"]}"
    )
    folder = _operators_folder(tmp_path)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PWD", str(folder))
    if by_environment:
        (folder / "ansible.cfg").unlink()
        monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", "pw")
    report = engine.run_playbook(Path("hosts.yml"), ["here"], environment=reading_environment())

    assert [(node.status, node.error) for node in report.nodes] == [(NodeStatus.UNCHANGED, None)]


def test_plugin_settings_of_the_operator_are_used_and_host_key_settings_ignored(tmp_path, monkeypatch):
    """Lists and paths come in the form in which Ansible reads them from its environment."""
    monkeypatch.chdir(tmp_path)
    Path("ansible.cfg").write_text(
        "[defaults]\nhost_key_checking = False\ninventory_plugins = one:two\n"
        "[inventory]\nenable_plugins = ini, yaml\n"
        "[ssh_connection]\nssh_args = -o StrictHostKeyChecking=no\n"
    )
    environment = reading_environment()

    assert environment["ANSIBLE_INVENTORY_ENABLED"] == "ini,yaml"
    assert environment["ANSIBLE_INVENTORY_PLUGINS"] == f"{tmp_path}/one:{tmp_path}/two"
    assert not any("HOST_KEY" in name or "SSH" in name for name in environment)


def test_relative_paths_are_resolved_in_the_current_folder(playbook, tmp_path, monkeypatch):
    """A key file that the inventory names is found by Ansible where our own connection finds it."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "hosts").write_text(HOSTS)
    (folder / "here.txt").write_text("x")
    monkeypatch.chdir(folder)
    playbook("command: {cmd: test -e here.txt, chdir: \"{{ '.' | realpath }}\"}")
    report = engine.run_playbook(Path("hosts"), ["here"])

    assert report.ok, report


def test_the_log_has_no_colours_and_an_unwritable_log_is_a_warning(playbook, tmp_path):
    """Escape codes make a log unreadable; a full or read-only home is a warning beside the report."""
    playbook("command: 'true'")
    log = tmp_path / "logs" / "apply-1.log"
    report = engine.run_playbook(Path("hosts"), ["here"], log=log)

    assert report.warnings == ()
    assert "changed: [here]" in log.read_text()
    assert "\x1b" not in log.read_text()

    report = engine.run_playbook(Path("hosts"), ["here"], log=log / "no-folder" / "apply-2.log")

    assert report.nodes[0].status is NodeStatus.CHANGED
    assert "could not be written" in report.warnings[0]
    assert "warning: " in as_text(report)


def test_a_change_by_a_task_with_secrets_is_reported(playbook):
    """Its role and task are named as the reason, and nothing else of it is shown."""
    tasks = Path("roles/safe/tasks")
    tasks.mkdir(parents=True)
    (tasks / "main.yml").write_text(
        "- {name: Take it, command: echo s3cret, no_log: true}\n- command: 'true'\n  changed_when: false\n"
    )
    playbook("include_role: {name: safe}")
    report = engine.run_playbook(Path("hosts"), ["here"])

    role = report.nodes[0].roles[0]
    assert (report.nodes[0].status, role.role, role.reasons) == (NodeStatus.CHANGED, "safe", ("Take it",))


def test_check_mode_changes_nothing_and_reports_pending_changes(playbook, tmp_path):
    """By role, with the content of files; of a task with no_log only that there is something."""
    playbook("debug: {msg: hello}\n  roles: [kept]")
    for name, hidden in (("open", "false"), ("hidden", "true")):
        (tmp_path / name).write_text("before\n")
        tasks = tmp_path / "roles/kept/tasks/main.yml"
        tasks.parent.mkdir(parents=True, exist_ok=True)
        with tasks.open("a") as stream:
            copy = f'{{dest: {tmp_path / name}, content: "{name} secret\\n"}}'
            stream.write(f"- {{name: Write {name}, copy: {copy}, no_log: {hidden}}}\n")
    report = engine.run_playbook(Path("hosts"), ["here"], check=True)

    assert [(tmp_path / name).read_text() for name in ("open", "hidden")] == ["before\n"] * 2
    assert [node.error for node in report.nodes] == [None]
    assert report.differences == (
        Difference("here", "kept", str(tmp_path / "open"), "before\n", "open secret\n"),
        Difference("here", "kept", "Write hidden", withheld="it may contain secrets"),
    )


def test_ctrl_c_ends_ansible_and_its_workers(playbook):
    """After Ctrl-C nothing goes on changing nodes behind the user's back."""
    playbook("command: sleep 600")
    process = subprocess.Popen(
        [sys.executable, "-c", CALL],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(engine.__file__).parents[1])},
    )
    try:
        end = time.monotonic() + 60
        while not (sleeping := [pid for pid in descendants(process.pid) if _command(pid).startswith("sleep 600")]):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.1)
        started = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert "Interrupted: interrupted; finished tasks remain in effect" in errors
    assert len(started) > len(sleeping)
    assert [_command(pid) for pid in started if _command(pid)] == []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def test_a_run_for_planned_roles_contains_no_other_roles(tmp_path, monkeypatch):
    """Plays without a planned role and roles that no planned role uses are left out; roles without tags always run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROVISION_PLAYBOOKS", str(tmp_path))
    Path("hosts").write_text(HOSTS)
    Path("ansible.cfg").write_text("[defaults]\n")
    Path("site.yml").write_text("[{import_playbook: nodes.yml}, {import_playbook: containers.yml}]\n")
    for play, names in {"nodes": ("limits", "driver", "engine"), "containers": ("image",)}.items():
        roles = [{"role": "platform"}, *({"role": name, "tags": [name]} for name in names)]
        text = json.dumps([{"hosts": "all", "gather_facts": False, "roles": roles}])
        Path(f"{play}.yml").write_text(text)
        for name in ("platform", *names):
            tags = ["always"] if name in ("platform", "driver") else []
            task = {"name": f"Run {name}", "ansible.builtin.command": "true", "tags": tags}
            Path("roles", name, "tasks").mkdir(parents=True, exist_ok=True)
            Path("roles", name, "tasks/main.yml").write_text(json.dumps([task]))
    monkeypatch.setenv("ANSIBLE_ROLES_PATH", str(tmp_path / "roles"))

    every = engine.run_playbook(Path("hosts"), ["here"], tags=["engine"])
    planned = engine.run_playbook(Path("hosts"), ["here"], tags=["engine"], roles={"engine", "limits"})

    assert [role.role for role in every.nodes[0].roles] == ["platform", "driver", "engine"]
    assert [role.role for role in planned.nodes[0].roles] == ["platform", "engine"]
    assert (every.tasks, planned.tasks) == (4, 2)
