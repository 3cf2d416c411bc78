"""A hundred SIMULATED nodes: the cost of probing them, and which faults of some must not affect the rest."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision import facts, workflow
from provision.errors import ConnectionFailed, ProvisionError
from provision.inventory import load
from tests.benchmarks.many_nodes import PROGRAMS, run
from tests.benchmarks.simulated_nodes import Nodes, SimulatedNodes, name_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """Inventories are kept in a folder of this test's own; no agent and no settings of a person take part."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def probe(nodes: SimulatedNodes) -> dict[str, object]:
    """Probe all nodes as verify does."""
    return workflow.probe(workflow.with_defaults(load(nodes.inventory)).nodes)


def test_a_plan_of_a_hundred_nodes_needs_one_session_per_node(tmp_path):
    """On a converged fleet: one login and one command on each node."""
    with SimulatedNodes(tmp_path / "nodes", Nodes(100, applied=True)) as nodes:
        command = [sys.executable, "-m", "provision", "plan", "--json", "-i", str(nodes.inventory)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        executed = nodes.executed()

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["converged"] is True
    assert executed == {name_of(number): 1 for number in range(100)}


def test_the_cost_of_a_plan_is_bounded_and_linear_in_the_number_of_nodes(tmp_path):
    """Four times the nodes take at most eight times the processor time; memory and files stay below fixed limits."""
    programs = {"plan": PROGRAMS["plan"]}
    run([25, 100], programs, cache=tmp_path / "kept")
    few, many = run([25, 100], programs, cache=tmp_path / "kept")

    assert (few.cost.code, many.cost.code) == (0, 0), many.cost.err
    assert many.cost.rss_mib < 150
    assert many.cost.files < 900
    assert many.cost.cpu_seconds <= 8 * few.cost.cpu_seconds


def test_a_hundred_slow_nodes_take_little_longer_than_one(tmp_path):
    """Logins of half a second and an nvidia-smi of three do not add up."""
    options = {"login_seconds": 0.5, "smi_seconds": 3.0}
    with SimulatedNodes(tmp_path / "nodes", Nodes(100, **options)) as nodes:
        begun = time.monotonic()
        results = probe(nodes)
        seconds = time.monotonic() - begun

    assert not [value for value in results.values() if isinstance(value, ProvisionError)]
    assert seconds < 100 * 3.5 / 5, "a fifth of the sum: a busy machine needs several times what a quiet one does"


def test_silent_and_hanging_nodes_do_not_delay_the_others(tmp_path, monkeypatch):
    """Some never say a word, one answers the login and then hangs: the others are there, these are named."""
    monkeypatch.setattr(facts, "probe_seconds", lambda _: 10)
    hung, silent = (5,), tuple(range(20, 60))
    with SimulatedNodes(tmp_path / "nodes", Nodes(100, hung=hung, silent=silent)) as nodes:
        begun = time.monotonic()
        results = probe(nodes)
        seconds = time.monotonic() - begun
    lost = {name for name, value in results.items() if isinstance(value, ProvisionError)}

    assert lost == {name_of(number) for number in (*hung, *silent)}
    assert "did not answer" in str(results[name_of(20)])
    assert "did not end within its time limit" in str(results[name_of(5)])
    assert seconds < 41 * 10 / 5, "a fifth of the sum of the time limits"


def outputs_of(nodes: SimulatedNodes, *words: str) -> tuple[list[str], list[str]]:
    """Run a command into a pipe; return the lines of stdout and of stderr."""
    argv = [sys.executable, "-m", "provision", *words, "-i", str(nodes.inventory)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert max(map(len, done.stdout.splitlines()), default=0) <= 130, done.stdout
    return done.stdout.splitlines(), done.stderr.splitlines()


@pytest.fixture(scope="module")
def crowd(tmp_path_factory) -> Iterator[SimulatedNodes]:
    """Sixty-four nodes, of which some never say a word."""
    with SimulatedNodes(
        tmp_path_factory.mktemp("crowd") / "nodes", Nodes(64, silent=tuple(range(40, 60)), port=2122)
    ) as nodes:
        yield nodes


@pytest.mark.parametrize(
    ("words", "out", "err"),
    [
        (("plan",), 45, 4),
        (("apply", "--yes"), 30, 45),
        pytest.param(("list",), 4, 6, marks=pytest.mark.slow),
        pytest.param(("verify",), 30, 4, marks=pytest.mark.slow),
        pytest.param(("hostfile",), 44, 6, marks=pytest.mark.slow),
        pytest.param(("history",), 12, 6, marks=pytest.mark.slow),
        pytest.param(("history", "--nodes"), 12, 4, marks=pytest.mark.slow),
        pytest.param(("reset", "--yes"), 20, 6, marks=pytest.mark.slow),
        pytest.param(("gdr",), 40, 6, marks=pytest.mark.slow),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_reports_about_sixty_four_nodes_are_grouped(crowd, words, out, err):
    """Most answer and some are silent: a few lines for each of the two, not for each node, also in a pipe."""
    stdout, stderr = outputs_of(crowd, *words)

    assert (len(stdout) <= out, len(stderr) <= err) == (True, True), "\n".join([*stdout, *stderr])
    assert not [line for line in stdout if line.startswith("Preflight:")]
    if words[0] == "apply":  # it went past the preflight, to the nodes that answer
        assert "gpu[0001-0040,0061-0064]: failed at task 'lock the node'" in stdout


def test_dropped_connections_are_retried(tmp_path):
    """Servers that take five logins at a time drop the others at first; in the end every node was reached."""
    with SimulatedNodes(tmp_path / "nodes", Nodes(40, login_seconds=0.1, max_startups=5)) as nodes:
        results = probe(nodes)

    assert not [value for value in results.values() if isinstance(value, ProvisionError)]


def test_a_wrong_host_key_among_many_nodes_is_refused(tmp_path):
    """A node that shows another key than the one on record is refused, also among a crowd."""
    with SimulatedNodes(tmp_path / "nodes", Nodes(4)) as nodes:
        lines = nodes.known_hosts.read_text().splitlines()
        swapped = [" ".join([lines[1].split()[0], *lines[0].split()[1:]]), *lines[2:]]
        nodes.known_hosts.write_text("\n".join([lines[0], *swapped, ""]))
        results = probe(nodes)
    lost = {name: value for name, value in results.items() if isinstance(value, ProvisionError)}

    assert set(lost) == {name_of(1)}
    assert isinstance(lost[name_of(1)], ConnectionFailed)
    assert "CHANGED" in str(lost[name_of(1)])
