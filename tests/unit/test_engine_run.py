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
