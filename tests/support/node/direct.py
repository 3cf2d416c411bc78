"""The direct engine over nodes in folders: its requests reach the real program for jobs without SSH."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from provision.errors import ProvisionError
from provision.jobs.engines.direct import DirectEngine, Known, engine, finding, reading, starting, watching, ways
from provision.jobs.node_programs import jobs_program
from provision.model import Cluster, CommandResult, Node, Topology, TopologyGpu
from provision.testing import make_cluster
from provision.topology.candidates import Candidate, Machine, Mode
from tests.support.node.node import COMPILED, GPUS, FakeNode

__all__ = ["direct_engine"]

PROGRAM = jobs_program()


class Way:
    """The way to one node; what was compiled once is used again, in place of the program that comes along."""

    def __init__(self, node: FakeNode) -> None:
        self.name, self._node = node.name, node

    def run(self, _script: str, *, stdin: bytes = b"", timeout: float | None = None) -> CommandResult:
        """Answer one request."""
        process = self.start("")
        out, err = process.child.communicate(stdin.removeprefix(PROGRAM) + b"\n", timeout=timeout)
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
        """Send the request, without the program before it."""
        assert self.child.stdin is not None
        self.child.stdin.write(data.removeprefix(PROGRAM))
        self.child.stdin.flush()

    def output(self) -> Iterator[tuple[str, bytes]]:
        """Yield lines as they come."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            yield "stdout", line

    def wait(self) -> int:
        """Return the exit status."""
        return self.child.wait()

    def close(self) -> None:
        """End its input, and wait for its end."""
        self.child.communicate()


class FakeEyes:
    """Sees four GPUs on every node."""

    def look(self, cluster: Cluster, names: Sequence[str]) -> Known:
        """Return the nodes as they are without jobs."""
        del cluster
        links = tuple(tuple("X" if a == b else "PIX" for b in range(len(GPUS))) for a in range(len(GPUS)))
        machine = Machine(Topology(tuple(TopologyGpu(index) for index in range(len(GPUS))), (), links))
        candidates = {name: Candidate(name, machine, mode=Mode.DEFAULT) for name in names}
        return Known(candidates, addresses=dict.fromkeys(names, "127.0.0.1"), cpus=dict.fromkeys(names, 2))


def direct_engine(monkeypatch: pytest.MonkeyPatch, *nodes: FakeNode) -> DirectEngine:
    """Return an engine whose nodes are these; the first one keeps the queue."""
    by_name = {node.name: node for node in nodes}

    def connect(node: Node) -> Way:
        return Way(by_name[node.name])

    def each(asked: Sequence[Node], work: Callable[[Any], Any], **_: Any) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        for node in asked:
            try:
                found[node.name] = work(connect(node))
            except ProvisionError as error:
                found[node.name] = error
        return found

    monkeypatch.setattr(engine, "connect", connect)
    monkeypatch.setattr(engine, "each", each)
    monkeypatch.setattr(ways, "connect", connect)
    monkeypatch.setattr(reading, "connect", connect)
    monkeypatch.setattr(watching, "connect", connect)
    monkeypatch.setattr(reading, "each", each)
    monkeypatch.setattr(finding, "each", each)
    monkeypatch.setattr(starting, "keeper_programs", lambda: COMPILED)
    monkeypatch.setattr(starting, "GRACE_SECONDS", 1.0)
    return DirectEngine(make_cluster(*by_name), FakeEyes())
