"""``provision reload`` as it is typed."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from provision import connectors
from provision.cli.main import main
from provision.errors import ConnectionFailed, LockedError, NodeError, ProvisionError
from provision.model import Cluster
from provision.testing import FakeConnector
from provision.workflow import node_locks
from provision.workflow.inventory_state import inventory_lock
from tests.support.probe import answer
from tests.unit.checks.conftest import make_node
from tests.unit.checks.test_reload import HANGS, IN_USE, printed

REFUSED = printed("refused", said=IN_USE.strip())


def scripts(printed):
    """Return the answers of a node to both programs."""
    if isinstance(printed, ProvisionError):
        return {".pyz": printed}
    return {".pyz reload": printed.answer, ".pyz probe": answer(printed.outputs)}


@pytest.fixture
def reload(monkeypatch, capsys, tmp_path):
    """Run the verb on nodes that answer as given; return exit code, stdout, stderr and who was asked."""

    def call(answers, *words, variables=None, locked=()):
        asked = []

        @contextmanager
        def acquire(nodes, *, command):
            locks = node_locks.NodeLocks(command)
            locks.refused = {name: LockedError("in use", node=name) for name in locked}
            assert all(node.name in answers for node in nodes)
            yield locks

        def each(nodes, function, **_):
            requests = {}
            for node in nodes:
                asked.append(node.name)
                try:
                    requests[node.name] = function(FakeConnector(scripts(answers[node.name]), node.name))
                except ProvisionError as error:
                    requests[node.name] = error
            return requests

        nodes = tuple(
            make_node(name, f"10.77.0.{i}", **(variables or {}).get(name, {})) for i, name in enumerate(answers, 1)
        )
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        monkeypatch.setattr(connectors, "each", each)
        monkeypatch.setattr(node_locks, "acquire", acquire)
        monkeypatch.setattr("provision.cli.common.inventory_from", lambda *_: Path("hosts.yml"))
        monkeypatch.setattr("provision.inventory.load", lambda *_a, **_k: Cluster("c", Path("hosts.yml"), nodes))
        with pytest.raises(SystemExit) as stopped:
            main(["reload", *words])
        said = capsys.readouterr()
        return stopped.value.code, said.out, said.err, asked

    return call


def test_ready_nodes_and_nodes_without_the_role_exit_with_0(reload):
    """A node where the role was never applied is said so; it is no failure of the command."""
    code, out, _, _ = reload({"gpu1": printed("done"), "cpu1": printed("absent", status=None)}, "--yes")

    assert code == 0
    assert out.splitlines()[1].split()[:3] == ["gpu1", "ready", "nv_peer_mem"]
    assert "the role peer_memory was never applied" in " ".join(out.split())


@pytest.mark.parametrize(
    ("printed_by_node", "result"),
    [
        (printed("done", 1, status=HANGS, loaded=False), "failed"),
        (REFUSED, "refused"),
        (printed("busy", said="process 7 holds /dev/nvidia0"), "refused"),
        (ConnectionFailed("no route to host", node="gpu2", remedy="is it on?"), "unreachable"),
        (NodeError("our programs cannot be copied to /run", node="gpu2", remedy="Free space."), "failed"),
    ],
)
def test_a_node_that_is_not_ready_exits_with_1_and_a_remedy(reload, printed_by_node, result):
    """The others are done all the same."""
    code, out, _, _ = reload({"gpu1": printed("done"), "gpu2": printed_by_node}, "--yes", "--json")
    good, bad = json.loads(out)["nodes"]

    assert (code, json.loads(out)["ok"]) == (1, False)
    assert (good["result"], bad["result"]) == ("ready", result)
    assert bad["reason"]
    assert bad["remedy"]


def test_cause_and_remedy_come_from_the_status_file_of_the_node(reload):
    """What the node found out is handed on in its own words."""
    _, out, _, _ = reload({"gpu1": printed("done", 1, status=HANGS, loaded=False)}, "--yes", "--json")
    (node,) = json.loads(out)["nodes"]

    assert node["cause"] == HANGS["cause"]
    assert HANGS["explanation"] in node["reason"]
    assert HANGS["remedy"] in node["remedy"]


def test_a_refusal_of_the_node_is_reported_unchanged(reload):
    """How many use it, and what to do."""
    _, out, _, _ = reload({"gpu1": REFUSED}, "--yes")
    text = " ".join(out.split())

    assert "is in use (3 users)" in text
    assert "Stop the jobs on this node and try again." in text


def test_without_a_terminal_confirmation_is_required(reload):
    """Nothing asks a person who is not there."""
    code, _, err, asked = reload({"gpu1": printed("done")})

    assert (code, asked) == (2, [])
    assert "--yes" in err


def test_excluded_and_disabled_nodes_are_not_contacted(reload):
    """Only chosen nodes that need it get a connection; the rest is listed."""
    answers = dict.fromkeys(("gpu1", "gpu2", "gpu3"), printed("done"))
    off = {"gpu3": {"peer_memory_enabled": False}}
    code, out, _, asked = reload(answers, "--limit", "gpu2,gpu3", "--yes", "--json", variables=off)

    assert (code, asked) == (0, ["gpu2"])
    assert [(node["name"], node["result"]) for node in json.loads(out)["nodes"]] == [
        ("gpu2", "ready"),
        ("gpu3", "skipped"),
    ]


def test_reload_is_refused_during_an_apply(reload, tmp_path, monkeypatch):
    """The second is refused with the lock holder, and exits 4."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with inventory_lock(Cluster("c", Path("hosts.yml"), (make_node("gpu1", "10.77.0.1"),)), "apply"):
        code, _, err, asked = reload({"gpu1": printed("done")}, "--yes")

    assert (code, asked) == (4, [])
    assert "for `apply`" in err


def test_reload_is_refused_during_an_apply_of_another_operator(reload):
    """Another controller has another inventory lock; the lock of the node excludes it. No node is changed."""
    code, _, _, asked = reload(dict.fromkeys(("gpu1", "gpu2"), printed("done")), "--yes", locked=["gpu2"])

    assert (code, asked) == (4, [])
