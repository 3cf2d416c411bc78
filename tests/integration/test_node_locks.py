"""Locks of nodes as an apply takes them: with real lock holders on this machine that have a folder of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from provision.commands import node_lock
from provision.engine import Event
from provision.errors import ConnectionFailed, Interrupted, PythonMissing
from provision.model import Connection, Node
from provision.testing import make_node
from provision.workflow import history, node_locks, remote_lock
from tests.support.command import eventually

HOLDER = """
import sys
from provision.commands import node_lock
from provision.testing import make_node
from provision.workflow import node_locks
node_lock.PLACES.update(folders=[sys.argv[1]], history=sys.argv[1] + "/history.jsonl", marks=["none such", "none"])
with node_locks.acquire([make_node("a", local=True)], command="provision apply") as locks:
    locks.note("a", "run docker_engine")
    print("held", locks.failed, locks.refused, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """Two nodes, both this machine, each with folders of its own; no Ansible of anybody else is seen."""
    keep, look, unlock = node_lock.keep_request, node_lock.look_request, node_lock.unlock_request

    def own(name):
        (tmp_path / name).mkdir(exist_ok=True)
        mark = f"a mark in {tmp_path}"
        return {"folders": [f"{tmp_path}/{name}"], "history": f"{tmp_path}/{name}/h.jsonl", "marks": [mark, "none"]}

    monkeypatch.setattr(node_lock, "TIMES", {"silence": 90, "linger": 60, "quiet": 0.1})
    monkeypatch.setattr(node_lock, "keep_request", lambda holder: {**keep(holder), **own(holder["node"])})
    monkeypatch.setattr(node_lock, "look_request", lambda entries=0: {**look(entries), **own("a")})
    monkeypatch.setattr(node_lock, "unlock_request", lambda holder, who: {**unlock(holder, who), **own("a")})
    return [make_node("a", local=True), make_node("b", local=True)]


def status(nodes):
    return history.read_nodes(nodes[:1])["a"][-1].status


def test_a_locked_node_is_refused_and_the_others_are_locked(nodes):
    """Its owner is named; the other node is ours, and free again afterwards."""
    with node_locks.acquire(nodes[:1], command="provision apply --only base_system"):
        with node_locks.acquire(nodes, command="provision apply") as second:
            assert list(second.refused) == ["a"]
            assert second.lost() == second.failed == {}
        error = second.refused["a"]
    with node_locks.acquire(nodes, command="provision apply") as third:
        assert third.refused == {}

    assert error.exit_code == 4
    assert f"(process {os.getpid()})" in str(error)
    assert "for `provision apply --only base_system`" in str(error)


def test_a_node_that_cannot_be_locked_is_reported_with_the_reason(nodes):
    """No Python, no answer: each with its own reason, and the good node is locked."""
    bad = Node("c", Connection("127.0.0.1", port=1, user="root", ssh_args=("-F", "none")))
    old = make_node("b", local=True, ansible_python_interpreter="/no/such/python")
    with node_locks.acquire([nodes[0], old, bad], command="x") as locks:
        assert remote_lock.probe_locks(nodes[:1])["a"].held

    assert list(locks.failed) == ["b", "c"]
    assert isinstance(locks.failed["b"], PythonMissing)
    assert "/no/such/python" in str(locks.failed["b"])
    assert isinstance(locks.failed["c"], ConnectionFailed)


def test_a_machine_listed_twice_in_the_inventory_is_reported(nodes, monkeypatch):
    """Otherwise the message would name our own apply as the holder."""
    request = node_lock.keep_request
    folders = request({"node": "a"})["folders"]
    monkeypatch.setattr(node_lock, "keep_request", lambda holder: {**request(holder), "folders": folders})
    with node_locks.acquire(nodes, command="x") as locks:
        assert (len(locks.failed), locks.refused) == (1, {})

    assert "names this machine twice" in str(next(iter(locks.failed.values())))


def test_the_steps_of_an_apply_are_in_the_history_of_the_node(nodes):
    """The steps and the end, as the apply reports them; and the operator."""
    with node_locks.acquire(nodes, command="provision apply") as locks:
        running = status(nodes)
        locks.note("a", "run base_system")
        locks.finish("a", {"status": "failed", "roles": ["base_system"], "message": "no space"})
    (entry,) = history.read_nodes(nodes[:1])["a"]

    assert running == "running"
    assert (entry.status, entry.roles, entry.notes) == ("failed", ("base_system",), ("run base_system",))
    assert (entry.message, entry.pid, entry.command) == ("no space", os.getpid(), "provision apply")


def test_an_interrupted_apply_is_recorded_and_its_lock_lasts_until_the_last_task_ends(nodes, tmp_path):
    """We leave at once; the node is free when what still runs there has ended."""
    mark = f"read line # a mark in {tmp_path}"
    with subprocess.Popen(["sh", "-c", mark], stdin=subprocess.PIPE) as task:
        with pytest.raises(Interrupted), node_locks.acquire(nodes[:1], command="x") as locks:
            raise Interrupted("Ctrl-C")
        held = remote_lock.probe_locks(nodes[:1])["a"].held
        task.communicate()
    eventually(lambda: not remote_lock.probe_locks(nodes[:1])["a"].held, seconds=20, what="the node is free")

    assert held
    assert f"process {task.pid} " in locks.warnings["a"]
    assert status(nodes) == "interrupted"


def test_apply_waits_for_the_remaining_tasks_of_a_dead_apply(nodes, tmp_path):
    """The next apply says so and goes on by itself, where it would refuse for an operator who is alive."""
    events: list[Event] = []
    with subprocess.Popen(["sh", "-c", f"read line # a mark in {tmp_path}"], stdin=subprocess.PIPE) as task:

        def on_event(event: Event) -> None:
            events.append(event)
            task.stdin.close()

        with pytest.raises(Interrupted), node_locks.acquire(nodes[:1], command="provision apply"):
            raise Interrupted("Ctrl-C")
        with node_locks.acquire(nodes[:1], command="x", on_event=on_event) as locks:
            refused = dict(locks.refused)

    assert refused == {}
    (event,) = events
    assert (event.node, event.status) == ("a", "waiting")
    assert "wait for running tasks of a lost command" in event.task
    assert "the connection to its controller is lost since" in event.task


def test_a_removed_lock_is_detected(nodes):
    """An apply can stop before it works on a node that another one changes now."""
    with node_locks.acquire(nodes, command="x") as locks:
        look = remote_lock.probe_locks(nodes[:1])["a"]
        (done,) = remote_lock.unlock(nodes[:1], {"a": look.holder})
        eventually(locks.lost, seconds=10, what="the loss is noticed")
        lost = locks.lost()

    assert (done.ok, done.result) == (True, "unlocked")
    assert list(lost) == ["a"]
    assert "was the node unlocked?" in lost["a"]
    assert status(nodes) == "unlocked"


def test_heartbeats_preserve_the_lock(nodes, monkeypatch):
    """However long the work takes, an operator's side that is alive is not taken for dead."""
    monkeypatch.setattr(node_lock, "TIMES", {"silence": 1.0, "linger": 0, "quiet": 0})
    monkeypatch.setattr(node_lock, "BEAT_SECONDS", 0.2)
    with node_locks.acquire(nodes[:1], command="x") as locks:
        first = remote_lock.probe_locks(nodes[:1])["a"].holder
        with pytest.raises(AssertionError, match="lost"):
            eventually(locks.lost, seconds=1.6, what="lost")
        assert remote_lock.probe_locks(nodes[:1])["a"].holder == first


def test_a_killed_apply_frees_its_nodes(tmp_path):
    """Without anybody cleaning up; and the node remembers how far it came."""
    environment = os.environ | {"PYTHONPATH": str(Path(node_lock.__file__).parents[2])}
    argv = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as apply:
        assert apply.stdout.readline() == b"held {} {}\n"
        assert (tmp_path / "provision.lock.holder").exists()
        apply.send_signal(signal.SIGKILL)
    eventually(lambda: not (tmp_path / "provision.lock.holder").exists(), seconds=20, what="the lock is gone")

    assert '"status": "died"' in (tmp_path / "history.jsonl").read_text()
    assert "run docker_engine" in (tmp_path / "history.jsonl").read_text()
