"""The history of applies that this machine keeps of an inventory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from provision.model import Cluster
from provision.testing import make_node
from provision.workflow import history

DIES = """
import os, sys
from pathlib import Path
from provision.model import Cluster
from provision.testing import make_node
from provision.workflow import history
nodes = tuple(make_node(name) for name in sys.argv[2:])
history.begin(Cluster("c", Path(sys.argv[1]), nodes), command="provision apply", nodes=sys.argv[2:])
os._exit(1)
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """An inventory of two nodes, with a state folder of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Cluster("c", tmp_path / "hosts.yml", (make_node("a"), make_node("b")))


@pytest.fixture
def killed(cluster, monkeypatch):
    """Let an apply of these nodes begin, and its process go without a word."""
    monkeypatch.setenv("PYTHONPATH", str(Path(history.__file__).parents[2]))

    def run(*names):
        subprocess.run([sys.executable, "-c", DIES, str(cluster.inventory), *names], check=False)

    return run


def done(cluster, *names, status="ok"):
    """One finished apply of these nodes."""
    entry = history.begin(cluster, command="provision apply", nodes=names)
    outcome = {name: {"status": "changed", "roles": ["base_system"], "message": ""} for name in names}
    assert history.end(entry, status=status, seconds=1.5, nodes=outcome) is None


def test_an_apply_is_recorded_with_its_result(cluster):
    """Who, what for, how it ended, on which nodes; in a file that only its owner can read."""
    done(cluster, "a")
    (entry,) = history.read(cluster)
    file = entry.file

    assert (entry.command, entry.status, entry.seconds) == ("provision apply", "ok", 1.5)
    assert entry.nodes["a"]["roles"] == ["base_system"]
    assert entry.ended
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_the_next_apply_reports_an_interrupted_one(cluster, killed):
    """Who it was and when; the one that runs now is not taken for it."""
    killed("a", "b")
    mine = history.begin(cluster, command="provision apply", nodes=["a"])
    interrupted = history.interrupted(cluster)

    assert interrupted.status == "died"
    assert interrupted.id != mine.id
    assert (
        interrupted.describe()
        == f"the apply of {interrupted.describe()[13:29]} by {interrupted.user} on {interrupted.host}"
    )
    assert [entry.status for entry in history.read(cluster)] == ["died", "running"]


def test_a_later_apply_of_the_same_nodes_clears_the_warning(cluster, killed):
    """Of part of the nodes it does not."""
    killed("a", "b")
    done(cluster, "a")
    partly = history.interrupted(cluster)
    done(cluster, "b", status="failed")

    assert partly is not None
    assert history.interrupted(cluster) is None


def test_each_inventory_has_its_own_history(cluster, tmp_path):
    """Nodes of other inventories are not mentioned."""
    done(cluster, "a")

    assert history.read(Cluster("c", tmp_path / "other.yml", cluster.nodes)) == ()


def test_an_incomplete_line_is_ignored(cluster):
    """A power cut leaves one; what is written after it stands on a line of its own."""
    done(cluster, "a")
    file = history.read(cluster)[0].file
    with file.open("a") as stream:
        stream.write('{"id": "x", "started": "2026-11')
    done(cluster, "b")

    assert [list(entry.nodes) for entry in history.read(cluster)] == [["a"], ["b"]]


def test_history_is_limited_to_200_entries(cluster):
    """The newest 200 applies are kept."""
    done(cluster, "first")
    file = history.read(cluster)[0].file
    old = ({"id": f"{number}", "started": "x", "status": "ok", "nodes": {f"n{number}": {}}} for number in range(500))
    file.write_text("".join(json.dumps(record) + "\n" for record in old))
    done(cluster, "last")
    entries = history.read(cluster)

    assert (len(entries), list(entries[0].nodes), list(entries[-1].nodes)) == (200, ["n301"], ["last"])
    assert len(file.read_text().splitlines()) == 202


def test_an_unwritable_history_is_a_warning(cluster, tmp_path):
    """The apply itself goes on."""
    (tmp_path / "state").write_text("")
    entry = history.begin(cluster, command="provision apply", nodes=["a"])

    assert "could not be written" in history.end(entry, status="ok", seconds=1, nodes={})
    assert history.interrupted(cluster) is None
