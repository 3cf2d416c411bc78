"""``make bench-jobs``: batch jobs on container nodes, beside ssh and docker alone, all in one run.

``python -m tests.benchmarks.batch_jobs --nodes 2 --stored 500``; with ``--lab NAME`` on a lab that is there already.
``--engine slurm`` makes the lab a Slurm cluster, and compares with plain ``sbatch`` of the same containers.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

from provision.cli.list import RECENT
from provision.node_archive import archive
from tests.support.command import ROOT, Provision, eventually
from tests.support.jobs import use_engine
from tools.performance import Recorder

LAB = f"bench{os.getpid()}"
LINES, PAUSE = 12, 0.3
WRITES = f"for i in $(seq {LINES}); do date +%s.%N; sleep {PAUSE}; done"
STORED = Path(__file__).with_name("stored_jobs.py")


@dataclass(frozen=True)
class Row:
    """One thing that a user waits for: by us and, where there is one, by another way."""

    task: str
    limit: str
    """What is asked of us."""
    ours: Sequence[float]
    """Seconds, of each time."""
    other: str = ""
    others: Sequence[float] = ()


class Bench:
    """A lab, and what is measured on it."""

    def __init__(self, provision: Provision, lab: str, repeat: int, engine: str) -> None:
        self.provision, self.lab, self.repeat, self.engine = provision, lab, repeat, engine
        self.words = ("--lab", lab, "--engine", engine)
        inventory = Path(provision.ok("lab", "inventory", lab).out.strip())
        (group,) = yaml.safe_load(inventory.read_text())["all"]["children"].values()
        self.addresses = {name: variables["ansible_host"] for name, variables in group["hosts"].items()}
        self.folder = inventory.parent.parent
        self.head = next(iter(self.addresses))
        self.image = self.on(self.head, "docker image ls --format '{{.Repository}}:{{.Tag}}' | head -1").strip()

    def ssh(self, node: str, command: str) -> list[str]:
        """Return the line of ``ssh`` alone."""
        known = f"UserKnownHostsFile={self.folder / 'known_hosts'}"
        words = ["ssh", "-i", str(self.folder / "id_ed25519"), "-o", known, f"root@{self.addresses[node]}"]
        return [*words, command]

    def on(self, node: str, command: str, stdin: str = "") -> str:
        """Run a command on a node; it must succeed."""
        done = subprocess.run(self.ssh(node, command), input=stdin, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{node}: {command}: {done.stderr}")
        return done.stdout

    def start(self, argv: Sequence[str]) -> subprocess.Popen[str]:
        """Start a program of which the output is read."""
        environment, pipe = self.provision.environment, subprocess.PIPE
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=None, text=True, env=environment)

    def times(self, work: Callable[[int], float]) -> list[float]:
        """Do something as often as asked, and say each time."""
        durations = []
        for number in range(self.repeat):
            durations.append(work(number))
            sys.stderr.write(f"  {durations[-1]:.2f} s\n")
        return durations

    def until_first_line(self, argv: Sequence[str]) -> float:
        """Return the seconds from a program's start to its first line; it is let to its end."""
        begun = time.monotonic()
        child = self.start(argv)
        assert child.stdout
        line = child.stdout.readline()
        seconds = time.monotonic() - begun
        child.communicate()
        if not line or child.returncode:
            raise SystemExit(f"{shlex.join(argv)} ended with {child.returncode}, its first line was {line!r}")
        return seconds

    def first_line(self) -> Row:
        """From ``submit`` on two nodes to the first line of rank 0, and of the same containers without us.

        These are started by ``docker run`` over ssh, with Slurm by ``sbatch``.
        """
        words = ["pytorch", *self.words, f"--image={self.image}", "--gpus=1", "--workers=2", "--spread"]
        dry = self.provision.ok("submit", *words, "--name=bench-dry", "--dry-run", "-o", "json", "echo begun").document
        runs = {place["node"]: _run_words(dry["commands"][place["instance"]]) for place in dry["placement"]}
        by_hand = [self.ssh(node, run) for node, run in runs.items()]

        def docker(_: int) -> float:
            with ThreadPoolExecutor() as pool:
                return next(iter(pool.map(self.until_first_line, by_hand)))

        def sbatch(_: int) -> float:
            return self.until_first_line(self.ssh(self.head, _sbatch(list(runs.values()))))

        task = "submit on two nodes to the first line"
        by_slurm = self.engine == "slurm"
        others = self.times(sbatch if by_slurm else docker)
        ours = self.times(lambda number: self.submitted(f"bench-{number}"))
        if by_slurm:
            return Row(task, "2 s beyond sbatch", ours, "sbatch and docker run", others)
        return Row(task, "5 s beyond docker run", ours, "ssh and docker run", others)

    def submitted(self, name: str) -> float:
        """Return the seconds from ``submit`` on two nodes to the first line of rank 0."""
        words = ("pytorch", *self.words, f"--image={self.image}", "--gpus=1", "--workers=2", "--spread")
        return self.until_first_line(self.provision.argv("submit", *words, f"--name={name}", "--follow", "echo begun"))

    def beside(self, count: int, alone: Sequence[float]) -> Row:
        """The same with so many finished jobs on the nodes, beside how long it took without them."""
        ours = self.times(lambda number: self.submitted(f"bench-beside-{number}"))
        return Row(f"submit beside {count} jobs", "1 s beyond", ours, "without them", alone)

    def store(self, count: int) -> None:
        """Leave so many finished jobs on the nodes, as copies of the first, whose end is recorded by then.

        All of them are listed once: nodes leave out older jobs whose end they have reported.
        """
        entry = "cat /var/lib/provision/jobs/bench-0/queue.json"
        eventually(
            lambda: self.provision.ok("list", *self.words) and '"over"' in self.on(self.head, entry),
            seconds=60, what="the queue host has recorded the end of bench-0",
        )  # fmt: skip
        for node in self.addresses:
            packed = base64.b64encode(archive()).decode()
            self.on(node, "mkdir -p /run/bench && base64 -d > /run/bench/node.pyz", packed)
            there = self.on(node, "test -d /var/lib/provision/jobs/bench-0 && echo yes || true")
            if there:
                self.on(node, f"python3 - /run/bench/node.pyz bench-0 {count}", STORED.read_text())
        eventually(
            lambda: self.provision.ok("list", *self.words).out.count("stored-") <= RECENT,
            seconds=60, what="the end of every job was listed",
        )  # fmt: skip

    def reads(self, count: int) -> list[Row]:
        """``list`` and ``get`` with so many jobs on the nodes, beside one session to each that runs ``true``."""

        def whole(argv: Sequence[str]) -> float:
            begun = time.monotonic()
            out = subprocess.run(
                argv, env=self.provision.environment, capture_output=True, text=True, check=True
            ).stdout
            seconds = time.monotonic() - begun
            wanted = count if argv[-1] == "0" else min(count, RECENT)
            if "list" in argv and not wanted * 0.9 <= out.count("stored-") <= wanted:
                raise SystemExit(f"{shlex.join(argv)} shows {out.count('stored-')} jobs of {wanted}")
            return seconds

        def fan_out(_: int) -> float:
            begun = time.monotonic()
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda node: self.on(node, "true"), self.addresses))
            return time.monotonic() - begun

        bare = self.times(fan_out)
        lines = {
            f"list, {count} jobs": self.provision.argv("list", *self.words),
            f"list all of {count} jobs": self.provision.argv("list", *self.words, "--limit", "0"),
            f"get, {count} jobs": self.provision.argv("get", *self.words, f"stored-{count // 2}"),
        }
        return [
            Row(
                task,
                "" if "all" in task else "1 s",
                self.times(lambda _, line=argv: whole(line)),
                "ssh true on each node",
                bare,
            )  # type: ignore[misc]
            for task, argv in lines.items()
        ]

    def followed(self) -> Row:
        """How long after it was written a line is shown by ``logs -f``, and by ssh and ``docker logs -f``."""
        name = "bench-lines"
        words = ("submit", "run", *self.words, f"--name={name}", f"--image={self.image}", f"--nodes={self.head}")
        self.provision.ok(*words, f"sleep 3; {WRITES}")
        get = ("get", *self.words, name, "-o", "json")
        job = eventually(
            lambda: (one := self.provision.ok(*get).document)["status"] == "RUNNING" and one,
            seconds=60, what=f"{name} runs",
        )  # fmt: skip
        (assignment,) = job["instances"]
        lines = [
            self.provision.argv("logs", "-f", *self.words, name),
            self.ssh(self.head, f"docker logs -f {assignment['name']}"),
        ]
        with ThreadPoolExecutor() as pool:
            ours, others = pool.map(self.delays, lines)
        return Row("logs -f: a line after its being written", "1 s", ours, "ssh and docker logs -f", others)

    def delays(self, argv: Sequence[str]) -> list[float]:
        """Return for each line that was written while we read how old it was when it came."""
        child, begun = self.start(argv), time.time()
        assert child.stdout
        arrivals = [(float(line), time.time()) for line in child.stdout]
        child.wait()
        return [came - written for written, came in arrivals if written > begun + 1]

    def clear(self) -> None:
        """Leave nothing of ours on the nodes."""
        for node in self.addresses:
            self.on(node, "rm -rf /run/bench /var/lib/provision/jobs/stored-*")
        names = self.provision.ok("list", *self.words, "-o", "name").out.split()
        ours = [name for name in names if name.startswith("bench-")]
        if ours:
            self.provision.ok("delete", *self.words, "--force", *ours)


def _run_words(create: Sequence[str]) -> str:
    """Return ``docker run`` of what a job's ``docker create`` is, without what lies in the job's folder."""
    words, rest = ["docker", "run", "--rm"], list(create[2:])
    while rest:
        word = rest.pop(0)
        if word == "--volume" and rest[0].startswith("/var/lib/provision/jobs/"):
            rest.pop(0)
        else:
            words.append(word)
    return shlex.join(words)


def _sbatch(runs: Sequence[str]) -> str:
    """Return a shell line that submits a batch job with one of these commands on each node, and prints its first line.

    Slurm writes the output on the first node of the job, which is the one with Slurm's commands.
    """
    cases = " ".join(f"{rank}) {run};;" for rank, run in enumerate(runs))
    step = shlex.quote(f"case $SLURM_PROCID in {cases} esac")
    options = f"--parsable -N{len(runs)} -n{len(runs)} --gpus-per-task=1 --mem=512 --output=/run/bench-%j.out"
    wait = "until [ -s /run/bench-$job.out ]; do sleep 0.02; done; head -1 /run/bench-$job.out"
    ends = "while squeue -h -j $job | grep -q .; do sleep 0.1; done; rm /run/bench-$job.out"
    return f"set -e; job=$(sbatch {options} --wrap={shlex.quote(f'srun sh -c {step}')}); {wait}; {ends}"


def table(rows: Sequence[Row]) -> str:
    """Lay the rows out, the medians with the least and the most; ``x`` is against the other way."""
    lines = [("task", "median s", "from", "to", "other way", "median s", "beyond", "x", "limit")]
    for row in rows:
        mine, other = statistics.median(row.ours), statistics.median(row.others)
        lines.append(
            (
                row.task, f"{mine:.2f}", f"{min(row.ours):.2f}", f"{max(row.ours):.2f}", row.other, f"{other:.2f}",
                f"{mine - other:.2f}", f"{mine / other:.1f}", row.limit,
            )
        )  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join("  ".join(map(str.ljust, line, widths)).rstrip() + "\n" for line in lines)


def main() -> None:
    """Measure, and write the table and the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--stored", type=int, default=500)
    parser.add_argument("--lab", help="one that is there, with everything applied")
    parser.add_argument("--engine", choices=("direct", "slurm"), default="direct")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    title = "batch_jobs" if given.engine == "direct" else f"batch_jobs_{given.engine}"
    recorder = Recorder(title, f"Batch jobs, engine {given.engine}", ours=["provision"], notes=["GPUs are SIMULATED."])
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        own = {} if given.lab else {"XDG_STATE_HOME": f"{folder}/state"}
        provision, lab = Provision(Path(folder), **own), given.lab or LAB
        try:
            if not given.lab:
                machine = ("--driver", "container", "--nodes", str(given.nodes), "--machine", "pair")
                provision.ok("lab", "up", lab, *machine)
                use_engine(provision, lab, given.engine)
                provision.ok("apply", "--lab", lab, "--yes")
            bench = Bench(provision, lab, given.repeat, given.engine)
            try:
                rows = [bench.first_line(), bench.followed()]
                bench.store(given.stored)
                rows += [bench.beside(given.stored, rows[0].ours), *bench.reads(given.stored)]
            finally:
                bench.clear()
        finally:
            if not given.lab:
                provision("lab", "down", lab)
    given.out.mkdir(parents=True, exist_ok=True)
    head = (
        f"{len(bench.addresses)} container nodes, engine {given.engine} ({os.cpu_count()} processors, "
        f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after), {time.strftime('%Y-%m-%d %H:%M')}. SIMULATED GPUs.\n"
        "How to read it: tests/benchmarks/README.md\n\n"
    )
    options = f"--nodes {len(bench.addresses)} --engine {given.engine} --stored {given.stored}"
    for row in rows:
        command = f"make bench-jobs BENCH_JOBS='{options}'"
        recorder.add(row.task, len(bench.addresses), "provision", row.ours, command)
        recorder.add(row.task, len(bench.addresses), row.other, row.others, command)
    recorder.save(given.out)
    (given.out / f"{title}.txt").write_text(head + table(rows))
    numbers = [{"task": row.task, "ours": row.ours, "other": row.other, "others": row.others} for row in rows]
    (given.out / f"{title}.json").write_text(json.dumps({"load": load, "rows": numbers}, indent=1) + "\n")
    sys.stdout.write(head + table(rows))


if __name__ == "__main__":
    main()
