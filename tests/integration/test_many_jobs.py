"""Many batch jobs that two operators submit at once: the leases of GPUs, their order, and what is left behind.

What is promised is judged by what the nodes' docker engines and leases said meanwhile. The GPUs are SIMULATED.
"""

from __future__ import annotations

import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from provision.batch.queue import BACKFILL_LIMIT
from tests.integration.conftest import LAB
from tests.support.command import ROOT, Provision, eventually
from tests.support.engine import engine_host, held

BATCH = f"batch{os.getpid()}"
OPERATORS = ("anna", "boris")
WATCH = ROOT / "tests/support/node/gpu_watch.py"
SEEN = "/run/gpu-watch.jsonl"


@dataclass
class Crowd:
    """Two operators who submit jobs of several sizes at once, and the events that the nodes recorded meanwhile."""

    provision: Provision
    lab: str
    nodes: list[str]
    sizes: list[tuple[int, int]]
    """Of each job: GPUs of a worker, workers."""
    seconds: tuple[int, int]
    """A job takes something between."""
    chance: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311 - how long jobs take, no secret
    image: str = ""
    submit_seconds: dict[str, float] = field(default_factory=dict)
    """Job -> how long its ``submit`` took."""

    def on(self, node: str, command: str) -> str:
        """Return what a shell command prints on a node; it must succeed."""
        return self.provision.ok("lab", "ssh", self.lab, node, "--", command).out

    def run(self) -> None:
        """Watch the nodes, hand all jobs in, and wait until each has ended."""
        self.image = self.on(self.nodes[0], "docker image ls --format '{{.Repository}}:{{.Tag}}' | head -1").strip()
        for node in self.nodes:
            self.watch(node)
        try:
            self.hand_in()
            eventually(self.all_over, seconds=60 + 30 * len(self.sizes), what="all jobs have ended")
        finally:
            for node in self.nodes:
                self.on(node, "systemctl stop gpu-watch")

    def watch(self, node: str) -> None:
        """Begin to write down what there is on a node."""
        words = ("lab", "ssh", self.lab, node, "--", f": > {SEEN}; cat > /run/gpu_watch.py")
        assert self.provision(*words, stdin=WATCH.read_text()).code == 0
        self.on(node, f"systemd-run --collect --unit gpu-watch python3 /run/gpu_watch.py {SEEN}")

    def hand_in(self) -> None:
        """Let each operator submit every other job, one after the other, as fast as possible."""
        inventory = self.provision.ok("lab", "inventory", self.lab).out.strip()
        jobs = [(f"many-{number}", *size) for number, size in enumerate(self.sizes)]
        lines = {name: f"sleep {self.chance.randint(*self.seconds)}" for name, *_ in jobs}

        def one_after_the_other(place: int) -> None:
            mine = self.provision.operator(OPERATORS[place])
            for name, gpus, workers in jobs[place :: len(OPERATORS)]:
                words = ("submit", "pytorch", "-i", inventory, f"--name={name}", f"--image={self.image}")
                size = (f"--gpus={gpus}", f"--workers={workers}")
                begun = time.monotonic()
                mine.ok(*words, *size, lines[name], timeout=300)
                self.submit_seconds[name] = time.monotonic() - begun

        with ThreadPoolExecutor(len(OPERATORS)) as pool:
            list(pool.map(one_after_the_other, range(len(OPERATORS))))

    def jobs(self) -> list[dict]:
        """Return the jobs as ``list`` reports them."""
        all_jobs = self.provision.ok("list", "--lab", self.lab, "-o", "json").document
        return [job for job in all_jobs if job["name"].startswith("many-")]

    def all_over(self) -> list[dict] | None:
        """All jobs once they have ended; those that wait are started."""
        jobs = self.jobs()
        if any(job["status"] == "PENDING" for job in jobs):
            self.provision("queue", "run", "--lab", self.lab)
        return jobs if all(job["status"] in {"SUCCEEDED", "FAILED", "STOPPED"} for job in jobs) else None

    def seen(self) -> list[dict]:
        """What was written down on all nodes; GPUs have the node's name before their own."""
        events = []
        for node in self.nodes:
            for line in self.on(node, f"cat {SEEN}").splitlines():
                event = json.loads(line)
                own = {key: [f"{node}/{gpu}" for gpu in event[key]] for key in ("gpus",) if key in event}
                events.append({**event, **own, "node": node})
        return events

    def in_line(self) -> list[str]:
        """The names of all jobs in the order in which the head took them down."""
        read = "cat /var/lib/provision/jobs/many-*/job.json"
        jobs = [json.loads(line) for line in self.on(self.nodes[0], read).splitlines()]
        return [job["spec"]["name"] for job in sorted(jobs, key=lambda job: job["submitted"])]

    def left(self) -> dict[str, list[str]]:
        """Return what ended jobs left on the nodes: containers, leases, units, processes, secrets."""
        look = (
            "docker ps -aq --filter label=provision.job; ls /run/provision/leases; pgrep -f '[k]eeper.py' || true; "
            "systemctl list-units --all --plain --no-legend 'provision-job-*'; "
            "ls -d /var/lib/provision/jobs/*/attempts/*/{keeper.json,ssh,programs} 2>/dev/null || true"
        )
        return {node: self.on(node, f"bash -c {json.dumps(look)}").split() for node in self.nodes}

    def forget(self) -> None:
        """Delete all jobs."""
        names = [job["name"] for job in self.jobs()]
        if names:
            self.provision.ok("delete", "--lab", self.lab, "--force", *names)


def uses(seen):
    """GPU -> (from when, until when, job) of each container that had it, in the order of time."""
    gone = {event["container"]: event["time"] for event in seen if event["event"] == "destroy"}
    spans_by_gpu: dict[str, list[tuple[float, float, str]]] = {}
    for event in seen:
        for gpu in event["gpus"] if event["event"] == "create" else ():
            spans_by_gpu.setdefault(gpu, []).append((event["time"], gone[event["container"]], event["job"]))
    return {gpu: sorted(spans) for gpu, spans in spans_by_gpu.items()}


def given_at(seen):
    """Job -> when its first GPU was leased to it, by the node's own record."""
    times: dict[str, float] = {}
    for event in seen:
        if event["event"] == "lease":
            job, when = event["lease"]["job"], event["lease"]["time"]
            times[job] = min(when, times.get(job, when))
    return times


def assert_all_promises(crowd):
    """Every GPU had one job at a time, each job had all it asked for, came in its turn, ended, and left nothing."""
    jobs, seen = {job["name"]: job for job in crowd.all_over() or crowd.jobs()}, crowd.seen()
    others = [name for name, job in jobs.items() if job["status"] != "SUCCEEDED"]
    reports = [crowd.provision("get", "--lab", crowd.lab, name, "-e").out for name in others[:3]]
    assert not others, "\n".join([f"did not succeed: {others}", *reports])
    assert sorted(jobs) == sorted(crowd.submit_seconds)

    made = [event for event in seen if event["event"] == "create"]
    sizes = {f"many-{number}": size for number, size in enumerate(crowd.sizes)}
    for name, (gpus, workers) in sizes.items():
        assert [len(event["gpus"]) for event in made if event["job"] == name] == [gpus] * workers, name
    for gpu, spans in uses(seen).items():
        twice = [(before, after) for before, after in pairwise(spans) if before[1] > after[0]]
        assert not twice, f"{gpu} was booked twice: {twice}"
    for event in made:
        assert {lease.get("job") for lease in event["leases"].values()} <= {event["job"]}, event

    given, in_line = given_at(seen), crowd.in_line()
    for size in set(sizes.values()):
        of_size = [name for name in in_line if sizes[name] == size]
        assert of_size == sorted(of_size, key=given.__getitem__), f"jobs of {size} passed each other"
    for place, name in enumerate(in_line):
        passed_by = [other for other in in_line[place + 1 :] if given[other] < given[name]]
        assert len(passed_by) <= BACKFILL_LIMIT, f"{name} was passed by {passed_by}"
    assert crowd.left() == {node: [] for node in crowd.nodes}


@pytest.fixture
def crowd(provision, cluster):
    """Twenty short jobs for the common lab of two nodes with two GPUs each."""
    sizes = [(1, 1), (2, 1), (1, 1), (2, 2), (1, 1), (2, 1), (1, 2), (1, 1), (2, 1), (1, 1)] * 2
    made = Crowd(provision, LAB, [node["name"] for node in cluster["nodes"]], sizes, (1, 3))
    yield made
    made.forget()


@pytest.fixture
def large_crowd(provision):
    """Two hundred jobs for four nodes with eight GPUs each."""
    try:
        provision.ok("lab", "up", BATCH, "--driver", "container", "--nodes", "4", "--machine", "dgx1v")
        host = engine_host(Path(provision.environment["XDG_STATE_HOME"]) / "provision/labs" / BATCH)
        provision.ok("apply", "--lab", BATCH, "--yes")
        chance = random.Random(11)  # noqa: S311 - which jobs, no secret
        sizes = chance.choices([(1, 1), (2, 1), (4, 1), (8, 1), (8, 2)], [8, 5, 4, 2, 1], k=200)
        yield Crowd(provision, BATCH, [f"{BATCH}-{number}" for number in range(1, 5)], sizes, (10, 40))
    finally:
        down = provision("lab", "down", BATCH)
    assert down.code == 0, str(down)
    assert held(host, "ps", "-aq", "--filter", f"name=provision-{BATCH}-") == []


@pytest.mark.slow
def test_jobs_of_two_operators_share_the_gpus(crowd):
    """Twenty jobs: no GPU has two of them, all end, first come first served, nothing stays."""
    crowd.run()

    assert_all_promises(crowd)


@pytest.mark.long
def test_two_hundred_jobs_of_two_operators_share_the_gpus(large_crowd):
    """Sizes from one GPU to two whole nodes, more of them than fit: the large ones get their turn too."""
    large_crowd.run()

    assert_all_promises(large_crowd)
