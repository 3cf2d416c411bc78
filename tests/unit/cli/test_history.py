"""``provision history`` and ``provision unlock`` as they are typed, on this machine as a node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provision.cli.main import main
from provision.commands import node_lock
from provision.model import Cluster, Connection, Node
from provision.testing import make_node
from provision.workflow import history, node_locks

DEAD = Node("gone", Connection("127.0.0.1", port=1, user="root", ssh_args=("-F", "none")))


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """An inventory of this machine as the node gpu1, and of one that does not answer."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    places = {"folders": [str(tmp_path)], "history": f"{tmp_path}/history.jsonl", "marks": ["none such", "none"]}
    monkeypatch.setattr(node_lock, "PLACES", places)
    cluster = Cluster("c", Path("hosts.yml"), (make_node("gpu1", local=True), DEAD))
    monkeypatch.setattr("provision.cli.common.inventory_from", lambda *_: Path("hosts.yml"))
    monkeypatch.setattr("provision.inventory.load", lambda *_a, **_k: cluster)
    return cluster


@pytest.fixture
def typed(capsys):
    """Run a command; return exit code, stdout and stderr."""

    def run(*words):
        with pytest.raises(SystemExit) as stopped:
            main(list(words))
        said = capsys.readouterr()
        return stopped.value.code, said.out, said.err

    return run


def past(cluster, *names, status="ok", result="changed"):
    """One apply of these nodes that ended."""
    entry = history.begin(cluster, command="provision apply --only docker_engine --force base_system", nodes=names)
    outcome = {name: {"status": result, "roles": ["base_system"], "message": ""} for name in names}
    history.end(entry, status=status, seconds=2.0, nodes=outcome)


def test_history_shows_operator_command_and_result(cluster, typed):
    """A table of 80 columns; nodes that are not converged are named."""
    past(cluster, "gpu1")
    past(cluster, *(f"gpu{number}" for number in range(1, 1001)), status="interrupted", result="failed")
    code, out, _ = typed("history", "--local")

    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert " ok " in out
    assert " interrupted " in out
    assert "not converged: gpu[1-1000]" in " ".join(out.split())


def test_history_accepts_limit_and_number(cluster, typed):
    """Only the applies of a node, only the newest; as one JSON document."""
    past(cluster, "gpu1")
    past(cluster, "gone", status="failed")
    past(cluster, "gpu1", status="failed")
    code, out, _ = typed("history", "--limit", "gpu1", "--json")
    _, newest, _ = typed("history", "-n", "1", "--json")

    assert code == 0
    assert [entry["status"] for entry in json.loads(out)["entries"]] == ["ok", "failed"]
    assert [node["name"] for node in json.loads(newest)["entries"][0]["nodes"]] == ["gpu1"]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("words", [("--limit", "gpu1"), ("--local",)])
def test_an_empty_history_is_reported_and_succeeds(typed, words):
    """stdout stays empty for scripts."""
    code, out, err = typed("history", *words)

    assert (code, out) == (0, "")
    assert "no apply of" in err


def applied_elsewhere(cluster, *, status="changed"):
    """Record an apply on the node alone, as another operator's machine does."""
    with node_locks.acquire(cluster.nodes[:1], command="provision apply --limit gpu1") as locks:
        locks.finish("gpu1", {"status": status, "roles": ["base_system"], "message": ""})


@pytest.mark.parametrize(("status", "result"), [("waiting", "waiting"), ("reset", "ok"), ("nothing", "ok")])
def test_a_step_that_waits_and_a_reset_are_no_failures(cluster, typed, status, result):
    applied_elsewhere(cluster, status=status)

    document = json.loads(typed("history", "--limit", "gpu1", "--json")[1])

    assert [entry["status"] for entry in document["entries"]] == [result]


def test_a_second_operator_sees_the_history_of_the_fleet(cluster, typed):
    """This machine has recorded nothing; the nodes have. One that does not answer is named, and the exit code is 1."""
    applied_elsewhere(cluster)
    applied_elsewhere(cluster, status="failed")
    code, out, err = typed("history")
    document = json.loads(typed("history", "--json")[1])

    assert code == 1
    assert typed("history", "--limit", "gpu1")[0] == 0
    assert [line.split()[3] for line in out.splitlines()[1:] if line.startswith("20")] == ["ok", "failed"]
    assert "warning: no records of gone: 127.0.0.1 refuses connections" in " ".join(err.split())
    assert [entry["status"] for entry in document["entries"]] == ["ok", "failed"]
    assert document["entries"][0]["nodes"] == [
        {"name": "gpu1", "status": "changed", "roles": ["base_system"], "message": ""}
    ]
    assert document["entries"][0]["source"] == "nodes"
    assert [node["name"] for node in document["unreachable"]] == ["gone"]
    assert typed("history", "--local")[1] == ""


def test_an_apply_of_this_machine_is_listed_once(cluster, typed):
    """Its nodes have records of it with another id: operator, process and time identify it."""
    entry = history.begin(cluster, command="provision apply", nodes=["gpu1", "gone"])
    applied_elsewhere(cluster)
    results = {name: {"status": "changed", "roles": [], "message": ""} for name in ("gpu1", "gone")}
    history.end(entry, status="ok", seconds=2.0, nodes=results)
    (entry_document,) = json.loads(typed("history", "--json")[1])["entries"]

    assert (entry_document["id"], [node["name"] for node in entry_document["nodes"]]) == (entry.id, ["gpu1", "gone"])
    assert entry_document["source"] == "controller"


@pytest.mark.usefixtures("cluster")
def test_answers_of_nodes_are_limited_and_validated(typed):
    """No more than was asked for, nothing that is no record, and nothing that does something to a terminal."""
    good = {"started": "2026-11-22T10:00:00Z", "user": "eve\x1b[2J", "host": "ops2", "status": "changed"}
    lines = [json.dumps({**good, "id": str(n)}) for n in range(300)] + ["no json", '{"id": 7}', '{"id": "x"}']
    Path(node_lock.PLACES["history"]).write_text("\n".join(lines) + "\n")
    code, out, _ = typed("history", "-n", "5", "--limit", "gpu1")

    assert code == 0
    assert len([line for line in out.splitlines() if "ops2" in line]) <= 5
    assert "ops2" in out
    assert "\x1b" not in out


def test_history_of_nodes_lists_applies_of_all_operators(cluster, typed):
    """An unreachable node is named, with the reason and exit 1; the others are listed all the same."""
    with node_locks.acquire(cluster.nodes[:1], command="provision apply") as locks:
        locks.finish("gpu1", {"status": "changed", "roles": ["base_system"], "message": ""})
    code, out, _ = typed("history", "--nodes", "--json")
    _, text, _ = typed("history", "--nodes")
    results, gone = json.loads(out)["nodes"]

    assert (code, json.loads(out)["ok"]) == (1, False)
    assert (results["entries"][0]["status"], results["entries"][0]["roles"]) == ("changed", ["base_system"])
    assert "refuses connections" in gone["error"]
    assert "changed: base_system" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_unlock_shows_the_lock_holder_and_asks_for_confirmation(cluster, typed):
    """Without a terminal nothing is done; with --yes it is done, reported and recorded."""
    with node_locks.acquire(cluster.nodes[:1], command="provision apply --only rdma_stack") as locks:
        refused, _, warned = typed("unlock", "gpu1")
        still = dict(locks.lost())
        code, out, _ = typed("unlock", "gpu1", "--yes", "--json")
        lost = list(locks.lost())
    entry = history.read_nodes(cluster.nodes[:1])["gpu1"][-1]

    assert (refused, still) == (2, {})
    assert "for `provision apply --only rdma_stack`" in warned
    assert "undo each other" in warned
    assert (code, lost) == (0, ["gpu1"])
    assert json.loads(out)["nodes"][0]["result"] == "unlocked"
    assert entry.status == "unlocked"
    assert entry.message.startswith("unlocked by ")


@pytest.mark.usefixtures("cluster")
def test_unlock_of_a_free_node_is_reported_and_succeeds(typed):
    """Exit 0, and no question."""
    code, out, _ = typed("unlock", "gpu1")

    assert code == 0
    assert "no lock to take away" in out


@pytest.mark.usefixtures("cluster")
def test_unlock_of_an_unreachable_node_exits_with_1(typed):
    """The reason is said."""
    code, out, _ = typed("unlock", "gpu1", "gone")

    assert code == 1
    assert "gone: unreachable: 127.0.0.1 refuses connections" in " ".join(out.split())
