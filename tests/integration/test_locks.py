"""Two concurrent operators on real nodes: the second is refused with the holder's name; cleanup after a kill."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from tests.integration.conftest import LAB
from tests.support.command import Provision, eventually

APPLY = ("apply", "--lab", LAB, "--force", "base_system", "--yes")


@pytest.fixture
def other_operator(own_inventory, tmp_path):
    """A second operator with a state folder of its own, so that only the nodes can distinguish the two."""
    folder = own_inventory("second")
    return Provision(tmp_path, XDG_STATE_HOME=str(tmp_path / "state")), str(folder)


@pytest.fixture
def locked(cluster, on_node):
    """Return the nodes on which an apply holds the lock."""

    def look():
        names = [node["name"] for node in cluster["nodes"]]
        return [
            name for name in names if on_node(name, "ls /run/lock/provision.lock.holder 2>/dev/null || true").strip()
        ]

    return look


def test_the_second_of_two_operators_is_refused_and_sees_the_lock_holder(provision, cluster, locked, other_operator):
    """Exit 4, with process, time and command of the first; the first one ends as if it were alone."""
    command, folder = other_operator
    names = [node["name"] for node in cluster["nodes"]]
    with provision.start(*APPLY) as first:
        eventually(lambda: locked() == names or first.poll() is not None, seconds=120, what="it holds all nodes")
        second = command("apply", "-i", folder, "--force", "base_system", "--yes", "--json")
        out, _ = first.communicate(timeout=600)

    assert second.code == 4, str(second)
    assert f"process {first.pid})" in second.document["error"]["message"]
    assert "for `provision apply" in second.document["error"]["message"]
    assert "provision unlock" in second.document["error"]["remedy"]
    assert first.returncode == 0, out
    assert locked() == []


@pytest.mark.slow
def test_a_killed_apply_frees_its_nodes_and_the_next_one_reports_it(provision, cluster, locked):
    """kill -9 leaves no cleanup; the nodes are unlocked once Ansible's last task there has ended."""
    names = [node["name"] for node in cluster["nodes"]]
    with provision.start(*APPLY) as first:
        eventually(lambda: locked() == names or first.poll() is not None, seconds=120, what="it holds all nodes")
        first.send_signal(signal.SIGKILL)
    eventually(lambda: not locked(), seconds=120, what="the nodes are free")
    died = provision.ok("history", "--lab", LAB, "--nodes", "--json").document["nodes"]
    mine = provision.ok("history", "--lab", LAB, "--json").document["entries"]
    again = provision(*APPLY)

    assert [node["entries"][-1]["status"] for node in died] == ["died"] * len(names)
    assert mine[-1]["status"] == "died"
    assert again.code == 0, str(again)
    assert "was cut short" in again.out + again.err


def test_unlock_removes_a_lock_and_a_second_unlock_reports_none(provision, cluster, locked):
    """Who held it is shown, and the apply that lost it does not go on as if nothing were."""
    name = cluster["nodes"][0]["name"]
    with provision.start(*APPLY) as first:
        eventually(lambda: name in locked() or first.poll() is not None, seconds=120, what="it holds the node")
        first.send_signal(signal.SIGSTOP)
        done = provision("unlock", name, "--lab", LAB, "--yes", "--json")
        first.send_signal(signal.SIGKILL)
    again = provision.ok("unlock", name, "--lab", LAB, "--json")

    assert done.code == 0, str(done)
    assert (done.document["nodes"][0]["result"], done.document["nodes"][0]["holder"]["pid"]) == ("unlocked", first.pid)
    assert again.document["nodes"][0]["result"] == "free"


def test_a_node_records_the_start_of_an_apply(cluster, on_node):
    """It is on the disk before anything is changed, so that a power cut leaves a trace; root alone can read it."""
    name = cluster["nodes"][0]["name"]
    text = on_node(name, "cat /var/lib/provision/history.jsonl; stat -c %a:%U /var/lib/provision/history.jsonl")
    first = json.loads(text.splitlines()[0])

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first["started"])
    assert first["status"] == "running"
    assert first["host"] == os.uname().nodename
    assert text.splitlines()[-1] == "600:root"
