"""Probe, verify, host entries and the support bundle, with nodes that are answered for here."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from provision import connectors, workflow
from provision.errors import ConnectionFailed, NodeError, ProvisionError, UsageError
from provision.facts import ALL_FACTS, NodeFacts, Parameters, Unknown
from provision.facts.system import Hardware
from provision.model import Cluster, CommandResult, Connection, Node, Secret
from provision.node.probe import GIVEN_UP, NO_PROCESS
from provision.node_archive import INCOMPLETE_PYTHON, NO_PYTHON, OLD_PYTHON
from provision.workflow.node_plans import lacks_python
from provision.workflow.survey import ask


class Answer:
    """A connector to a node that knows its CPUs and nothing else."""

    python = "python3"

    def __init__(self, name: str, code: int = 0, said: str = "sudo: a password is required\n") -> None:
        self.name, self.code, self.said = name, code, said

    def run(self, script: str, **_: object) -> CommandResult:
        """Answer the probe with one readable fact; anything else ends with the code."""
        token = "0" * 32
        if not script.endswith(".pyz probe") or self.code:
            return CommandResult("", self.said, self.code)
        body = "".join(
            f"{token} out {f.name}\n{'cpus=4' + chr(10) + 'memory=2048' if f.name == 'hardware' else ''}\n"
            f"{token} err {f.name}\n\n{token} end {f.name} 0\n"
            for f in ALL_FACTS
        )
        return CommandResult(f"provision-probe 1 {token}\n{body}", "", 0)


@pytest.fixture
def cluster():
    """Three nodes: one answers, one has no sudo, one cannot be reached."""
    names = ("good", "nosudo", "gone")
    nodes = tuple(Node(name, Connection(name), {"cluster_data_address": f"10.0.0.{i}"}) for i, name in enumerate(names))
    return Cluster("c", Path("hosts.yml"), nodes)


@pytest.fixture(autouse=True)
def _nodes(monkeypatch, tmp_path):
    def each(nodes, function, **_):
        results = {}
        for node in nodes:
            try:
                if node.name == "gone":
                    raise ConnectionFailed("no route to host with sudo-pw-1", node="gone")
                results[node.name] = function(Answer(node.name, code=int(node.name == "nosudo")))
            except ProvisionError as error:
                results[node.name] = error
        return results

    monkeypatch.setattr(connectors, "each", each)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_a_probe_returns_facts_or_the_reason(cluster):
    """One bad node is a value among the others."""
    results = workflow.probe(cluster.nodes)

    assert list(results) == ["good", "nosudo", "gone"]
    assert isinstance(results["good"], NodeFacts)
    assert results["good"].hardware == Hardware(4, 2)
    assert isinstance(results["good"].system, Unknown)
    assert isinstance(results["nosudo"], NodeError)
    assert "a password is required" in results["nosudo"].output


def test_the_inventory_overrides_role_defaults(cluster):
    """Without a variable the defaults of the roles apply."""
    node = workflow.with_defaults(cluster).nodes[0]

    assert node.variables["cluster_data_address"] == "10.0.0.0"
    assert node.variables["training_container_name"] == "provision-training"


def test_text_of_an_ini_file_is_converted_as_in_roles():
    """A quoted number or truth counts as what it says, and not as if nothing had been said."""
    said = {"container_ssh_port": "2223", "cluster_slots": "8", "docker_engine_enabled": "no", "own": "8"}
    cluster = Cluster("c", Path("hosts.ini"), (Node("a", Connection("a"), said),))
    variables = workflow.with_defaults(cluster).nodes[0].variables

    assert (variables["container_ssh_port"], variables["cluster_slots"]) == (2223, 8)
    assert variables["docker_engine_enabled"] is False
    assert variables["own"] == "8"


def test_supported_systems_are_those_of_the_role():
    """The list that node.os shows is that of roles/platform/vars."""
    assert {"debian 12", "debian 13"} <= set(workflow.supported_systems())


def test_unreachable_nodes_fail_and_the_others_are_checked(cluster):
    """Every node has its checks, and the verification is not ok."""
    survey = workflow.verify(cluster)
    checks = {node.name: [check.id for check in node.checks] for node in survey.verification.nodes}

    assert checks["gone"] == checks["nosudo"] == ["node.reachable"]
    assert len(checks["good"]) > 20
    assert not survey.verification.ok


def test_only_a_verification_probes_the_gpu_topology(cluster, monkeypatch):
    """nvidia-smi needs seconds for it, so that a plan's look leaves it out."""
    sent: list[bytes] = []
    run = Answer.run
    monkeypatch.setattr(
        Answer, "run", lambda self, script, stdin=b"", **more: sent.append(stdin) or run(self, script, **more)
    )

    workflow.probe(cluster.nodes[:1])
    workflow.verify(cluster, "good", pairs=False)

    assert [json.loads(text)["environment"]["PROBE_TOPOLOGY"] for text in sent] == ["", "yes"]


@pytest.mark.parametrize(
    "said",
    [
        "sh: 16: Cannot fork\n",
        "sh: fork: retry: Resource temporarily unavailable\n",
        "sh: can't fork: Cannot allocate memory",
    ],
)
def test_a_node_that_cannot_start_processes_is_reported(cluster, monkeypatch, said):
    """Root and /run are not to blame then."""
    monkeypatch.setattr(
        connectors, "each", lambda nodes, function, **_: {n.name: _error(function, n.name, said) for n in nodes}
    )
    error = workflow.probe(cluster.nodes[:1])["good"]

    assert "it cannot start another process" in error.message
    assert "pid_max" in error.remedy


@pytest.mark.parametrize(
    ("code", "word"),
    [(NO_PROCESS, "processes"), (GIVEN_UP, "free space"), (1, "root"), (OLD_PYTHON, "newer Python")],
)
def test_each_failure_of_a_probe_has_its_own_remedy(code, word):
    with pytest.raises(NodeError) as caught:
        ask(Answer("n", code, "a cause\n"), ALL_FACTS, Parameters())

    assert word in caught.value.remedy


@pytest.mark.parametrize("code", [NO_PYTHON, INCOMPLETE_PYTHON])
def test_a_node_without_a_complete_python_reports_its_system(cluster, monkeypatch, code):
    """Debian's python3-minimal has no json; the plan then installs python3, although the command exists."""

    class Minimal(Answer):
        """Runs the script for nodes without python3 here."""

        def run(self, script: str, **_: object) -> CommandResult:
            """Run a script; programs end with the code."""
            if ".pyz" in script:
                return CommandResult("", "No module named 'json'\n", code)
            done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
            return CommandResult(done.stdout, done.stderr, done.returncode)

    monkeypatch.setattr(
        connectors, "each", lambda nodes, function, **_: {n.name: function(Minimal(n.name)) for n in nodes}
    )
    facts = workflow.probe(cluster.nodes[:1])["good"]

    assert facts.system.kernel == os.uname().release
    assert lacks_python(cluster.nodes[0], facts)
    assert isinstance(facts.receipts, Unknown)


def _error(function, name, said):
    with pytest.raises(NodeError) as caught:
        function(Answer(name, code=2, said=said))
    return caught.value


def test_nodes_excluded_from_a_host_file_are_reported(cluster):
    """In the inventory's order, each with the reason; nodes that were not asked for are not mentioned."""
    entries, left_out = workflow.host_entries(cluster, workflow.probe(cluster.nodes[1:3]))

    assert entries == []
    assert [name for name, _ in left_out] == ["nosudo", "gone"]
    assert "no route to host" in left_out[1][1]


def test_the_bundle_is_private_and_contains_no_passwords(cluster, tmp_path):
    """The file is 0600, never overwritten, and the sudo password is nowhere in it."""
    node = Node("gone", Connection("gone", become_password=Secret("sudo-pw-1")))
    target = tmp_path / "b.tar.gz"
    workflow.support_bundle(Cluster("c", Path("h"), (*cluster.nodes[:2], node)), target)
    with tarfile.open(target) as tar:
        texts = [tar.extractfile(member).read().decode() for member in tar.getmembers()]

    assert target.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["b.tar.gz"]
    assert not any("sudo-pw-1" in text for text in texts)
    assert any("no route to host with [removed]" in text for text in texts)
    with pytest.raises(UsageError, match="exists already"):
        workflow.support_bundle(cluster, target)
    with pytest.raises(UsageError, match="no folder"):
        workflow.support_bundle(cluster, tmp_path / "nowhere" / "b.tar.gz")
