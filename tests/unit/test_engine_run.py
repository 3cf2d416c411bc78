"""The engine with real Ansible on this machine alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provision import engine
from provision.local_processes import descendants
from provision.model import NodeStatus

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


def test_nodes_that_a_failed_run_once_stops_are_not_fine(playbook):
    """Ansible says nothing about them; the report names what stopped them."""
    Path("hosts").write_text(THREE)
    playbook("{name: Look at the image, command: 'false', run_once: true}\n    - command: 'true'")
    report = engine.run_playbook(Path("hosts"), ["a", "b", "c"])

    assert [node.status for node in report.nodes] == [NodeStatus.FAILED] * 3
    assert "stopped when this failed on a: " in report.nodes[1].error.message
    assert report.nodes[1].error.task == "Look at the image"


def test_one_failing_node_stops_no_other(playbook):
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


def test_handlers_on_a_stopped_node_do_not_hide_that_it_was_stopped(playbook):
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
        _, told = process.communicate(timeout=20)
    finally:
        process.kill()
    assert "Interrupted: interrupted; what is done stands" in told
    assert len(started) > len(sleeping)
    assert [_command(pid) for pid in started if _command(pid)] == []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
