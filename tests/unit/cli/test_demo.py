"""The demo with a stand-in for the command that each step runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from provision.cli import demo
from provision.errors import ProvisionError

STUB = """#!/bin/sh
echo "$*" >>{folder}/calls
case "$*" in *"apply"*"--json"*) cat {folder}/document ;; esac
"""
SLOW = """#!/bin/sh
trap 'echo "$(date +%s%N) told" >>{folder}/calls; sleep 0.3; echo ended >>{folder}/calls; exit 130' INT
echo ready
while :; do sleep 0.1; done
"""
CALL = "import sys; sys.executable = sys.argv[1]; from provision.cli.main import main; main(['demo'])"


def stub(tmp_path, monkeypatch, status, roles=()):
    """Make every step succeed; the last apply reports the node as `status`."""
    node = {"name": "demo-1", "status": status, "roles": list(roles), "error": None}
    document = {"ok": True, "seconds": 3.0, "nodes": [node], "remote_tasks": 1, "warnings": []}
    (tmp_path / "document").write_text(json.dumps(document))
    (tmp_path / "python").write_text(STUB.format(folder=tmp_path))
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(demo, "_summary", lambda *_: "the end")


def test_a_second_apply_that_changes_something_fails_the_demo(tmp_path, monkeypatch, capsys):
    """That nothing may change is checked, and what did is named."""
    stub(tmp_path, monkeypatch, "changed", [{"role": "docker_engine", "status": "changed", "reasons": ["Write it"]}])
    with pytest.raises(ProvisionError) as failed:
        demo.demo()

    assert failed.value.exit_code == 1
    assert failed.value.output == "demo-1: docker_engine: Write it"
    assert "demo-1  changed" in capsys.readouterr().out


def test_a_second_apply_that_changes_nothing_ends_the_demo(tmp_path, monkeypatch, capfd):
    """A person still reads the report as text."""
    stub(tmp_path, monkeypatch, "unchanged")
    demo.demo()

    out = capfd.readouterr().out
    assert "demo-1  unchanged" in out
    assert "1 of 1 nodes are up to date" in out
    assert out.endswith("the end\n")
    assert len((tmp_path / "calls").read_text().splitlines()) == 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_step_gets_one_signal_and_is_awaited(tmp_path, number):
    """The step's own process ends Ansible's workers and the ranks on nodes; it gets one signal and is awaited."""
    (tmp_path / "python").write_text(SLOW.format(folder=tmp_path))
    (tmp_path / "python").chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(Path(demo.__file__).parents[2])}
    argv = [sys.executable, "-c", CALL, str(tmp_path / "python")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        process.communicate(timeout=20)

    assert process.returncode == 130
    assert [line.split()[-1] for line in (tmp_path / "calls").read_text().splitlines()] == ["told", "ended"]
