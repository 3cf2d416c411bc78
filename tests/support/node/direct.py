"""The direct engine over nodes in folders: its requests reach the real program for jobs without SSH."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from provision.batch.signed import secrets_digest
from provision.documents.jobs import SecretsDocument, SignedJob
from provision.errors import ProvisionError
from provision.jobs import attempt_start, node_contact
from provision.jobs.cluster_snapshot import ClusterSnapshot
from provision.jobs.engines.direct import DirectEngine, change_watch
from provision.jobs.extras import JobExtras
from provision.jobs.signing import JobKeys
from provision.model import Cluster, CommandResult, Node, Topology, TopologyGpu
from provision.model.job import JobSpec, as_document
from provision.model.people import Person
from provision.node_archive import check_script
from provision.testing import make_cluster
from provision.topology.candidates import Candidate, Machine, Mode
from tests.support.node.node import GPUS, FakeNode

__all__ = ["FakeClusterProbe", "direct_engine", "reach_nodes", "recorded", "signing_keys"]


class Way:
    """A connection to one node, where a process of the test answers requests."""

    agent = False
    python = "python3"

    def __init__(self, node: FakeNode) -> None:
        self.name, self._node = node.name, node

    def run(self, script: str, *, stdin: bytes = b"", timeout: float | None = None, limit: int = 0) -> CommandResult:
        """Answer one request."""
        del limit
        if script == check_script():
            return CommandResult("", "", 0)
        process = self.start(script)
        out, err = process.child.communicate(stdin + b"\n", timeout=timeout)
        return CommandResult(out.decode(), err.decode(), process.child.returncode)

    def start(self, _script: str, **_: Any) -> Process:
        """Start a request that stays."""
        return Process(self._node)

    def close(self) -> None:
        """Nothing is open."""


class Process:
    """A request that stays."""

    def __init__(self, node: FakeNode) -> None:
        self.deadline: float | None = None
        self.child = node.program(subprocess.PIPE)

    def write(self, data: bytes) -> None:
        """Send the request."""
        assert self.child.stdin is not None
        self.child.stdin.write(data)
        self.child.stdin.flush()

    def output(self) -> Iterator[tuple[str, bytes]]:
        """Yield lines as they come."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            yield "stdout", line

    def wait(self) -> int:
        """Return the exit status."""
        return self.child.wait()

    def close_stdin(self) -> None:
        """End its input."""
        assert self.child.stdin is not None
        self.child.stdin.close()

    def close(self) -> None:
        """End its input, and wait for its end."""
        self.child.communicate()


class FakeClusterProbe:
    """Sees four GPUs on every node."""

    def probe(self, cluster: Cluster, names: Sequence[str]) -> ClusterSnapshot:
        """Return the nodes as they are without jobs."""
        del cluster
        links = tuple(tuple("X" if a == b else "PIX" for b in range(len(GPUS))) for a in range(len(GPUS)))
        machine = Machine(Topology(tuple(TopologyGpu(index) for index in range(len(GPUS))), (), links))
        candidates = {name: Candidate(name, machine, mode=Mode.DEFAULT) for name in names}
        return ClusterSnapshot(candidates, addresses=dict.fromkeys(names, "127.0.0.1"), cpus=dict.fromkeys(names, 2))


def direct_engine(
    monkeypatch: pytest.MonkeyPatch,
    *nodes: FakeNode,
    people: Mapping[str, Person] | None = None,
    extras: JobExtras | None = None,
    labels: Mapping[str, str] | None = None,
) -> DirectEngine:
    """Return an engine whose nodes are these; the first one keeps the queue, and has the controller's signing key."""
    cluster = reach_nodes(monkeypatch, *nodes, labels=labels)
    return DirectEngine(cluster, FakeClusterProbe(), signing_keys(nodes[0], people), extras)


def reach_nodes(monkeypatch: pytest.MonkeyPatch, *nodes: FakeNode, labels: Mapping[str, str] | None = None) -> Cluster:
    """Let connections reach these nodes, and return their cluster."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    by_name = {node.name: node for node in nodes}

    def connect(node: Node) -> Way:
        return Way(by_name[node.name])

    def each(asked: Sequence[Node], work: Callable[[Any], Any], **_: Any) -> Mapping[str, Any]:
        results: dict[str, Any] = {}
        for node in asked:
            try:
                results[node.name] = work(connect(node))
            except ProvisionError as error:
                results[node.name] = error
        return results

    monkeypatch.setattr(node_contact, "connect", connect)
    monkeypatch.setattr(node_contact, "each", each)
    monkeypatch.setattr(node_contact, "takes_connections", lambda *_: True)
    monkeypatch.setattr(change_watch, "connect", connect)
    monkeypatch.setattr(attempt_start, "GRACE_SECONDS", 1.0)
    return make_cluster(*by_name, **({"cluster_labels": labels} if labels else {}))


def signing_keys(node: FakeNode, people: Mapping[str, Person] | None = None) -> JobKeys:
    """Return the keys of the controller of `direct_engine`, whose head is this node."""
    return JobKeys(node.name, people or {}, node.folder / "signing_key")


def recorded(keys: JobKeys, spec: JobSpec, /, **changes: Any) -> dict[str, Any]:
    """Return the job.json of a job that these keys have signed, with `changes` to what is signed."""
    signed = {"version": 1, "cluster": keys.cluster, "id": f"id-{spec.name}", "name": spec.name, "owner": "me@here"}
    rest = {"submitted": 1.0, "spec": spec, "secrets": secrets_digest(SecretsDocument()), "code": None}
    job = SignedJob(**{**signed, **rest, **changes})  # type: ignore[arg-type]
    text, signature = keys.sign(job)
    document = {"id": job.id, "owner": job.owner, "spec": as_document(job.spec)}
    return {**document, "signed": text, "signature": signature}
