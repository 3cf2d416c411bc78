"""``provision reset`` as it is typed."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from provision import connectors, engine
from provision.cli.main import main
from provision.errors import ConnectionFailed, LockedError, ProvisionError
from provision.model import ApplyReport, Cluster, Failure, NodeReport, NodeStatus
from provision.testing import FakeConnector, make_node
from provision.workflow import node_locks

STEPS = {
    "steps": ["restore /etc/docker/daemon.json", "remove the receipts and records of the roles"],
    "left": [],
    "refused": [],
}
NOTHING = {"steps": [], "left": [], "refused": []}
BUSY = {**STEPS, "refused": ["a job runs: process 7 (python3 of root) holds /dev/nvidia0"]}
LOST = ConnectionFailed("no route to host", node="gpu2", remedy="Is it on?")


class Locks:
    """Locks of nodes, as far as somebody else has none of them."""

    def __init__(self, held):
        self.refused, self.failed, self.ends = held, {}, {}

    def finish(self, node, outcome):
        self.ends[node] = outcome


@pytest.fixture
def reset(monkeypatch, capsys, tmp_path):
    """Run the verb on nodes that answer as given; return exit code, stdout, stderr and each run of the playbook."""

    def call(answers, *words, held=None, fails=()):
        ran, locked = [], []

        def each(nodes, function, **_):
            requests = {}
            for node in nodes:
                try:
                    answer = answers[node.name]
                    said = answer if isinstance(answer, ProvisionError) else "/usr/bin/python3\n"
                    requests[node.name] = function(FakeConnector({"python3": said}, node.name))
                except ProvisionError as error:
                    requests[node.name] = error
            return requests

        def run_playbook(_inventory, names, *, playbook, variables, **_):
            assert playbook == "reset.yml"
            request = variables["_platform_reset"]
            ran.append(("plan" if request["plan"] else "reset", list(names), variables["_platform_disruptive"]))
            reports = []
            for name in names:
                failed = not request["plan"] and name in fails
                error = Failure("platform", "Undo", "apt would change others too", "", None) if failed else None
                reports.append(NodeReport(name, NodeStatus.FAILED if failed else NodeStatus.CHANGED, (), error))
                if not failed:
                    answer = {**answers[name], **({"refused": []} if name in variables["_platform_disruptive"] else {})}
                    Path(request["folder"], f"{name}.json").write_text(json.dumps(answer))
            return ApplyReport(tuple(reports), 1.0)

        @contextmanager
        def acquire(nodes, *, command, **_):
            assert command == "provision reset"
            locked.extend(node.name for node in nodes)
            yield Locks(held or {})

        nodes = tuple(make_node(name) for name in answers)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        monkeypatch.setattr(connectors, "each", each)
        monkeypatch.setattr(engine, "run_playbook", run_playbook)
        monkeypatch.setattr(node_locks, "acquire", acquire)
        monkeypatch.setattr("provision.cli.common.inventory_from", lambda *_: Path("hosts.yml"))
        monkeypatch.setattr("provision.inventory.load", lambda *_a, **_k: Cluster("c", Path("hosts.yml"), nodes))
        with pytest.raises(SystemExit) as stopped:
            main(["reset", *words])
        said = capsys.readouterr()
        assert {name for what, names, _ in ran if what == "reset" for name in names} <= set(locked)
        return stopped.value.code, said.out, said.err, ran

    return call


def test_reset_shows_the_plan_before_it_starts(reset):
    """The plan of every node is shown before anything is changed."""
    code, out, err, ran = reset({"gpu1": STEPS, "gpu2": STEPS}, "--yes")

    assert (code, [what for what, _, _ in ran]) == (0, ["plan", "reset"])
    assert "gpu1, gpu2: 2 steps to undo" in err
    assert "restore /etc/docker/daemon.json" in err
    assert "2 of 2 nodes have no changes of provision left." in out


def test_without_a_terminal_confirmation_is_required(reset):
    """Nothing asks a person who is not there; the plan is shown all the same."""
    code, _, err, ran = reset({"gpu1": STEPS})

    assert (code, [what for what, _, _ in ran]) == (2, ["plan"])
    assert "restore /etc/docker/daemon.json" in err
    assert "--yes" in err


def test_dry_run_only_shows_the_plan(reset):
    """The plan is the answer, for a person and for a script."""
    code, out, _, ran = reset({"gpu1": STEPS}, "--dry-run", "--json")

    document = json.loads(out)
    assert (code, [what for what, _, _ in ran], document["dry_run"]) == (0, ["plan"], True)
    assert document["nodes"][0]["steps"] == STEPS["steps"]
    assert document["nodes"][0]["result"] == "planned"


def test_nothing_to_reset_needs_no_confirmation(reset):
    """A second reset ends well and says so."""
    code, out, _, ran = reset({"gpu1": NOTHING})

    assert (code, [what for what, _, _ in ran]) == (0, ["plan"])
    assert "gpu1: nothing to undo" in out


def test_unreachable_nodes_are_reported(reset):
    """The others are reset, and the exit code is 1."""
    code, out, _, ran = reset({"gpu1": STEPS, "gpu2": LOST}, "--yes", "--json")

    good, bad = json.loads(out)["nodes"]
    assert (code, [names for _, names, _ in ran]) == (1, [["gpu1"], ["gpu1"]])
    assert (good["result"], bad["result"]) == ("reset", "unreachable")
    assert (bad["error"]["message"], bad["error"]["remedy"]) == ("no route to host", "Is it on?")


def test_a_busy_node_requires_disruptive(reset):
    """The job is named; --disruptive with the node's name goes on."""
    code, out, _, ran = reset({"gpu1": STEPS, "gpu2": BUSY}, "--yes")
    forced, _, _, both = reset({"gpu1": STEPS, "gpu2": BUSY}, "--yes", "--disruptive", "gpu2")

    assert (code, ran[-1][1]) == (1, ["gpu1"])
    assert "gpu2: refused, nothing was changed" in out
    assert "process 7 (python3 of root)" in out
    assert (forced, both[-1]) == (0, ("reset", ["gpu1", "gpu2"], ["gpu2"]))


def test_a_failed_node_is_reported_with_its_reason(reset):
    """And the exit code is 1."""
    code, out, _, _ = reset({"gpu1": STEPS, "gpu2": STEPS}, "--yes", fails=("gpu2",))

    assert code == 1
    assert "gpu1: reset, 2 steps" in out
    assert "gpu2: failed" in out
    assert "apt would change others too" in out


def test_a_locked_node_stops_the_reset(reset):
    """The lock holder is shown, nothing is undone, and the exit code is 4."""
    held = {"gpu1": LockedError("process 9 of alice holds it, for `provision apply`", remedy="Wait.")}
    code, _, err, ran = reset({"gpu1": STEPS}, "--yes", held=held)

    assert (code, [what for what, _, _ in ran]) == (4, ["plan"])
    assert "for `provision apply`" in err


@pytest.mark.parametrize("odd", [7, "word", {"a": 1}, None])
def test_an_invalid_answer_is_an_error_of_its_node(reset, odd):
    """It is never taken for "nothing to undo"; the other nodes are reported."""
    code, out, _, _ = reset({"gpu1": {**STEPS, "left": odd, "refused": odd}, "gpu2": NOTHING}, "--dry-run")

    assert code == 1
    assert "answer to a reset: Expected `array`" in out
    assert "gpu2: nothing to undo" in out


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_control_characters_from_a_node_are_replaced(reset, words):
    """A process chooses its name itself: escape sequences, and halves of characters that no stream takes."""
    refused = ["a job runs: process 7 (\x1b]0;owned\x07\x9b2J\ud800 of root)"]
    code, out, err, _ = reset({"gpu1": {**STEPS, "refused": refused}}, "--dry-run", *words)

    assert code == 1
    assert "process 7" in out
    assert all(letter.isprintable() or letter == "\n" for letter in out + err)
