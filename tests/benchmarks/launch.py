"""``make bench-launch``: what the start of a batch job on many nodes costs the controller and the leader's supervisor.

The nodes are SIMULATED: they answer each request after a fixed time, without SSH, and other nodes' supervisors are
connections from one process.

``python -m tests.benchmarks.launch --nodes 64,512``
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from provision.batch.ranks import Place, assignments_of
from provision.jobs import attempt_start
from provision.jobs.attempt import Attempt
from provision.jobs.cluster_snapshot import ClusterSnapshot
from provision.jobs.connections import Connections
from provision.model.job import JobSpec, Kind
from provision.model.job_requests import Secrets
from provision.model.result import CommandResult
from provision.node.supervisor import channel, handshake
from tests.benchmarks.placement_traffic import table

ROOT = Path(__file__).resolve().parents[2]
GPUS = 8
_SECRET = b"s" * 32


@dataclass
class Phase:
    """One phase of the start on so many nodes."""

    nodes: int
    phase: str
    seconds: float
    cpu_seconds: float
    mib_sent: float
    parallel: int
    """The most requests at one time."""


@dataclass
class Supervisor:
    """The leader's supervisor with so many nodes."""

    nodes: int
    rss_mib: float
    sockets: int
    threads: int
    cpu_ms_per_order: float


class SimulatedNode:
    """Answers requests about jobs as a node does, after some seconds."""

    agent = True
    lock = threading.Lock()
    sent = running = most = 0

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self._seconds = name, seconds

    def run(self, _command: str, *, stdin: bytes, timeout: float) -> CommandResult:
        """Answer one request."""
        del timeout
        kind = SimulatedNode
        with kind.lock:
            kind.sent, kind.running = kind.sent + len(stdin), kind.running + 1
            kind.most = max(kind.most, kind.running)
        threading.Event().wait(self._seconds)
        with kind.lock:
            kind.running -= 1
        return CommandResult(json.dumps(_answer(stdin)), "", 0)

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _answer(request: bytes) -> dict[str, Any]:
    """Return the answer to a request, which is not parsed: that would count as the controller's time."""
    do, ports = re.search(rb'"do": "(\w+)"', request), re.search(rb'"ports": (\d+)', request)
    if do is not None and do[1] == b"prepare":
        count = int(ports[1]) if ports is not None else 0
        return {"images": {"image": {"id": "sha256:1"}}, "ports": list(range(20000, 20000 + count))}
    return {"taken": {}} if do is not None and do[1] == b"lease" else {}


def start_phases(count: int, seconds: float) -> list[Phase]:
    """Return the cost of each phase of the start of a job with a worker on each of `count` nodes."""
    names = [f"gpu{number}" for number in range(count)]
    places = [
        Place(
            name, f"10.0.{n // 250}.{n % 250 + 1}", tuple(range(GPUS)), tuple(f"GPU-{n:08}-{g}" for g in range(GPUS)),
            tuple(f"mlx5_{g}" for g in range(GPUS)),
        )
        for n, name in enumerate(names)
    ]  # fmt: skip
    spec = JobSpec("bench", Kind.PYTORCH, ("true",), image="image", gpus=GPUS, workers=count, launcher="torchrun")
    attempt = Attempt(spec, "0123abcd", 1, {}, assignments_of(spec, places), Secrets(), ClusterSnapshot())
    contact = SimpleNamespace(connect=lambda name: SimulatedNode(name, seconds))
    phases: list[Phase] = []

    def measured(phase: str, work: Callable[[], object]) -> None:
        SimulatedNode.sent = SimulatedNode.most = 0
        begun, cpu = time.monotonic(), time.process_time()
        work()
        phases.append(
            Phase(
                count, phase, time.monotonic() - begun, time.process_time() - cpu, SimulatedNode.sent / 2**20,
                SimulatedNode.most,
            )
        )  # fmt: skip

    with Connections(contact) as connections:  # type: ignore[arg-type]
        measured("leases", lambda: attempt_start.take_leases(connections, attempt))
        measured("prepare and start", lambda: attempt_start.start(connections, attempt, None, lambda _: None))
    return phases


def supervisor(count: int) -> Supervisor:
    """Return what the leader's channel to `count` other nodes needs; each of them reports, and gets an order."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    names = [f"gpu{number}" for number in range(count)]
    heard: set[str] = set()
    everyone = threading.Event()

    def on_message(node: str, _report: object) -> None:
        heard.add(node)
        if len(heard) == count:
            everyone.set()

    before = _rss_mib()
    leader = channel.LeaderChannel("127.0.0.1", port, _SECRET, names, on_message)
    argv = [sys.executable, "-m", "tests.benchmarks.launch", "--members", f"{port},{count}"]
    members = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE)
    try:
        if not everyone.wait(300):
            raise RuntimeError(f"{len(heard)} of {count} SIMULATED nodes have connected")
        cpu, orders = time.process_time(), 5
        for _ in range(orders):
            leader.send({"go": True, "end": None, "done": [], "asks": None, "now": time.time()})
        cpu = (time.process_time() - cpu) * 1000 / orders
        sockets = sum(Path(entry.path).is_socket() for entry in os.scandir("/proc/self/fd"))
        return Supervisor(count, _rss_mib() - before, sockets, threading.active_count(), cpu)
    finally:
        members.kill()
        members.wait()


def _rss_mib() -> float:
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def members(port: int, count: int) -> None:
    """Be the supervisors of all other nodes until the input ends."""
    report = {
        "up": True, "doing": "", "ended": {}, "over": False, "trouble": None, "stop": None, "done": False, "asked": None
    }  # fmt: skip

    def connect(number: int) -> None:
        name, own = f"gpu{number}", list[channel.MemberChannel]()
        ready = threading.Event()
        secret = handshake.node_secret(_SECRET, name)
        own.append(channel.MemberChannel("127.0.0.1", port, secret, name, lambda _: None, ready.set))
        ready.wait()
        own[0].send({**report, "now": time.time()})

    for number in range(count):
        connect(number)
    sys.stdin.read()


def main() -> None:
    """Measure, and print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="64,128,256,512")
    parser.add_argument("--answer-seconds", type=float, default=0.02, help="of a request")
    parser.add_argument("--members", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    given = parser.parse_args()
    if given.members:
        port, count = map(int, given.members.split(","))
        members(port, count)
        return
    counts = [int(word) for word in given.nodes.split(",")]
    phases = [phase for count in counts for phase in start_phases(count, given.answer_seconds)]
    leaders = [supervisor(count) for count in counts]
    text = table(
        ("nodes", "phase", "seconds", "cpu s", "MiB sent", "requests at once"),
        (
            (
                *(str(one.nodes), one.phase, f"{one.seconds:.2f}", f"{one.cpu_seconds:.2f}"),
                *(f"{one.mib_sent:.1f}", str(one.parallel)),
            )
            for one in phases
        ),
    )
    text += "\n" + table(
        ("nodes", "MiB", "sockets", "threads", "cpu ms for an order to all"),
        (
            (str(one.nodes), f"{one.rss_mib:.1f}", str(one.sockets), str(one.threads), f"{one.cpu_ms_per_order:.1f}")
            for one in leaders
        ),
    )
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "launch.txt").write_text(text)
    (given.out / "launch.json").write_text(json.dumps([asdict(one) for one in [*phases, *leaders]], indent=1) + "\n")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
