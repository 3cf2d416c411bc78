"""``make bench-launch``: what the start of a batch job on many nodes costs the controller and the leader's supervisor.

The nodes are SIMULATED: they answer each request after a fixed time, without SSH, and other nodes' supervisors are
connections from one process.

``python -m tests.benchmarks.launch --nodes 64,512``
"""

from __future__ import annotations

import argparse
import json
import os
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
    cpu_ms_per_beat: float


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
        request = json.loads(stdin)
        with kind.lock:
            kind.running -= 1
        answers: dict[str, Any] = {
            "lease": {"taken": {}},
            "prepare": {"images": {name: {"id": "sha256:1"} for name in request.get("images", ())},
                        "ports": list(range(20000, 20000 + request.get("ports", 0)))},
        }  # fmt: skip
        return CommandResult(json.dumps(answers.get(request["do"], {})), "", 0)

    def close(self) -> None:
        """Do nothing: there is no connection."""


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
        cpu, beats = time.process_time(), 5
        for _ in range(beats):
            leader.send({"go": True, "end": None, "done": [], "asks": None, "now": time.time()})
        cpu = (time.process_time() - cpu) * 1000 / beats
        files = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_open(name)]  # noqa: PTH208
        sockets = sum(file.startswith("socket:") for file in files)
        return Supervisor(count, _rss_mib() - before, sockets, threading.active_count(), cpu)
    finally:
        members.kill()
        members.wait()


def _is_open(name: str) -> bool:
    return Path(f"/proc/self/fd/{name}").exists() or os.path.lexists(f"/proc/self/fd/{name}")


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
    leaders = []
    for count in counts:
        leaders.append(supervisor(count))
    text = "".join(f"{one}\n" for one in [*phases, *leaders])
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "launch.json").write_text(json.dumps([asdict(one) for one in [*phases, *leaders]], indent=1) + "\n")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
