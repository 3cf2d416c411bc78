"""``make bench-placement``: traffic between leaf switches by the choice and order of nodes, and the time of a choice.

Fabrics are generated: leaf switches below one spine, part of the nodes busy. Slurm is a real slurmctld; its nodes are
SIMULATED by the state CLOUD, in which it allocates nodes without a slurmd.

``python -m tests.benchmarks.placement_traffic --slurm FOLDER --seeds 5``
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean
from types import TracebackType
from typing import Self

from provision.topology.placement import Request
from provision.topology.select import place
from tests.unit.topology.boxes import BOXES

ROOT = Path(__file__).resolve().parents[2]
GPUS = 8
BOX = BOXES["HGX H100"]
RAILS = dataclasses.replace(
    BOX, cards=tuple(dataclasses.replace(card, rail=f"rail{rail}") for rail, card in enumerate(BOX.cards))
)
"""The same with a separate network for each card."""
OURS, RANDOM, SLURM = "provision", "random", "Slurm topology/tree"
CASES: Mapping[str, Mapping[str, bool]] = {
    "names by leaf, busy by leaf": {},
    "names by leaf, busy at random": {"blocks": False},
    "names mixed, busy by leaf": {"by_leaf": False},
    "names mixed, busy at random": {"by_leaf": False, "blocks": False},
}


@dataclass(frozen=True)
class Fabric:
    """Nodes in the order of their names, each with its leaf switch."""

    leaves: Mapping[str, str]
    busy: frozenset[str]

    @property
    def free(self) -> list[str]:
        """Return the free nodes in the order of their names."""
        return [name for name in self.leaves if name not in self.busy]


@dataclass(frozen=True)
class Traffic:
    """What crosses the spine when all GPUs of some nodes communicate."""

    leaves: int
    ring: int
    """Neighbours on different leaf switches along the ring of the nodes; each rail has such a ring."""
    pairs: float
    """The share of the pairs of different nodes that are on different leaf switches, of an all-to-all."""


def fabric(
    seed: int, *, leaves: int = 16, nodes: int = 16, busy_share: float = 0.5, by_leaf: bool = True, blocks: bool = True
) -> Fabric:
    """Return a fabric in use.

    Args:
        seed: of the random choices.
        leaves: number of leaf switches.
        nodes: nodes of each.
        busy_share: share of the nodes that are busy.
        by_leaf: whether the names of the nodes of a leaf switch follow each other; else they are mixed at random.
        blocks: whether jobs on up to a whole leaf switch made nodes busy; else single nodes at random.
    """
    chance = Random(seed)  # noqa: S311
    switches = [f"leaf{number // nodes}" for number in range(leaves * nodes)]
    if not by_leaf:
        chance.shuffle(switches)
    names = {f"n{number:05}": leaf for number, leaf in enumerate(switches)}
    count = round(len(names) * busy_share)
    return Fabric(names, frozenset(_in_blocks(chance, names, count) if blocks else chance.sample(list(names), count)))


def _in_blocks(chance: Random, names: Mapping[str, str], count: int) -> set[str]:
    members: dict[str, list[str]] = {}
    for name, leaf in names.items():
        members.setdefault(leaf, []).append(name)
    busy: set[str] = set()
    while len(busy) < count:
        leaf = chance.choice(sorted(members))
        some = [name for name in members[leaf] if name not in busy]
        size = min(chance.randint(1, len(members[leaf])), len(some), count - len(busy))
        busy.update(chance.sample(some, size))
    return busy


def traffic(fabric: Fabric, nodes: Sequence[str]) -> Traffic:
    """Count what crosses the spine for nodes in rank order."""
    way = [fabric.leaves[name] for name in nodes]
    inside = sum(count * (count - 1) for count in Counter(way).values())
    ring = sum(here != there for here, there in pairwise([*way, way[0]]))
    return Traffic(len(set(way)), ring, 1 - inside / (len(way) * (len(way) - 1)))


# Programs


def ours(fabric: Fabric, count: int, *, pack: bool = True) -> list[str]:
    """Return the nodes of our planner in rank order."""
    nodes = [BOX.candidate(name, 0 if name in fabric.busy else None, leaf=leaf) for name, leaf in fabric.leaves.items()]
    return list(place(nodes, Request(GPUS, count, pack=pack)).nodes)


def random_nodes(fabric: Fabric, count: int) -> list[str]:
    """Return free nodes, chosen and ordered at random."""
    return Random(count).sample(fabric.free, count)  # noqa: S311


class Slurm:
    """A slurmctld that runs while the context is open; nothing of it remains.

    Args:
        programs: folder in which the Debian packages of Slurm are unpacked.
        fabric: its nodes.
    """

    def __init__(self, programs: Path, fabric: Fabric) -> None:
        self._programs, self._fabric = programs, fabric
        self._folder = tempfile.TemporaryDirectory(prefix="bench-slurm-")
        home = Path(self._folder.name)
        library = programs / "usr/lib/x86_64-linux-gnu"
        self._environment = {
            **os.environ,
            "SLURM_CONF": str(home / "slurm.conf"),
            "LD_LIBRARY_PATH": f"{library}:{library / 'slurm-wlm'}",
        }
        (home / "slurm.conf").write_text(self._conf(home, library / "slurm-wlm"))
        switches: dict[str, list[str]] = {}
        for name, leaf in fabric.leaves.items():
            switches.setdefault(leaf, []).append(name)
        lines = [f"SwitchName={leaf} Nodes={','.join(nodes)}\n" for leaf, nodes in switches.items()]
        (home / "topology.conf").write_text("".join([*lines, f"SwitchName=spine Switches={','.join(switches)}\n"]))

    def _conf(self, home: Path, plugins: Path) -> str:
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            ports = one.getsockname()[1], other.getsockname()[1]
        values = {
            "ClusterName": "simulated", "SlurmctldHost": f"{socket.gethostname()}(127.0.0.1)",
            "SlurmctldPort": ports[0], "SlurmdPort": ports[1], "SlurmUser": "root",
            "AuthType": "auth/none", "CredType": "cred/none", "PluginDir": plugins,
            "StateSaveLocation": home, "SlurmctldPidFile": home / "pid", "SlurmdSpoolDir": home,
            "SelectType": "select/cons_tres", "SelectTypeParameters": "CR_Core", "TopologyPlugin": "topology/tree",
            "ProctrackType": "proctrack/pgid", "TaskPlugin": "task/none", "SchedulerType": "sched/builtin",
            "ResumeProgram": "/bin/true", "SuspendProgram": "/bin/true", "ResumeTimeout": 3600, "GresTypes": "gpu",
        }  # fmt: skip
        lines = [f"{key}={value}" for key, value in values.items()]
        lines += [f"NodeName={name} CPUs={GPUS} Gres=gpu:{GPUS} State=CLOUD" for name in self._fabric.leaves]
        return "\n".join([*lines, "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP", ""])

    def __enter__(self) -> Self:
        """Start slurmctld, and take the busy nodes out of use."""
        argv = [str(self._programs / "usr/sbin/slurmctld-wlm"), "-D"]
        self._log = (Path(self._folder.name) / "log").open("w")
        self._process = subprocess.Popen(argv, env=self._environment, stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + 60
        while self._call("scontrol", "ping", check=False).returncode:
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.__exit__(None, None, None)
                raise RuntimeError("slurmctld did not start")
            time.sleep(0.1)
        if self._fabric.busy:
            names = ",".join(sorted(self._fabric.busy))
            self._call("scontrol", "update", f"NodeName={names}", "State=DRAIN", "Reason=busy")
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """End slurmctld."""
        self._process.kill()
        self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def _call(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        argv = [str(self._programs / "usr/bin" / words[0]), *words[1:]]
        done = subprocess.run(argv, env=self._environment, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(words)[:200]}: {done.stderr.strip()}")
        return done

    def nodes(self, count: int) -> list[str]:
        """Return the nodes of a job in the order of its ranks."""
        answer = self._call("sbatch", "--test-only", "--exclusive", f"--nodes={count}", "--wrap=true").stderr
        listed = re.search(r" on nodes (\S+) in partition", answer)
        if listed is None:
            raise RuntimeError(f"sbatch --test-only: {answer.strip()}")
        return self._call("scontrol", "show", "hostnames", listed[1]).stdout.split()


# Results


@dataclass(frozen=True)
class Row:
    """A job on one kind of fabric; all values are means over the seeds."""

    fabric: str
    nodes: int
    program: str
    leaves: float
    ring: float
    pairs: float


@dataclass(frozen=True)
class Time:
    """Processor time of a choice from many nodes."""

    nodes: int
    busy: str
    network: str
    job: str
    cpu_seconds: float


def compare(seeds: int, sizes: Sequence[int], slurm: Path | None) -> Iterator[Row]:
    """Yield the traffic of each program on each kind of fabric."""
    for title, options in CASES.items():
        counts: dict[tuple[int, str], list[Traffic]] = {}
        for seed in range(seeds):
            made = fabric(seed, **options)
            for size, program, nodes in _choices(made, sizes, slurm):
                if len(set(nodes)) != size or made.busy & set(nodes):
                    raise RuntimeError(f"{program}: {len(nodes)} nodes of {size}, or busy ones")
                counts.setdefault((size, program), []).append(traffic(made, nodes))
        order = {name: number for number, name in enumerate((RANDOM, SLURM, OURS))}
        for (size, program), results in sorted(counts.items(), key=lambda one: (one[0][0], order[one[0][1]])):
            yield Row(title, size, program, *_means(results))


def _means(results: Sequence[Traffic]) -> tuple[float, float, float]:
    return mean(one.leaves for one in results), mean(one.ring for one in results), mean(one.pairs for one in results)


def _choices(made: Fabric, sizes: Sequence[int], slurm: Path | None) -> Iterator[tuple[int, str, list[str]]]:
    for size in sizes:
        yield size, RANDOM, random_nodes(made, size)
        yield size, OURS, ours(made, size)
    if slurm is not None:
        with Slurm(slurm, made) as controller:
            for size in sizes:
                yield size, SLURM, controller.nodes(size)


def times(count: int) -> Iterator[Time]:
    """Yield the time of choices from many nodes, idle ones and ones with 30 of 100 GPUs busy at random."""
    for share in (0.0, 0.3):
        chance = Random(5)  # noqa: S311
        free = [sum((chance.random() >= share) << gpu for gpu in range(GPUS)) for _ in range(count)]
        for network, box in (("one", BOX), (f"{GPUS} rails", RAILS)):
            nodes = [box.candidate(f"n{n}", mask, leaf=f"leaf{n // 32}") for n, mask in enumerate(free)]
            for gpus, workers in ((8, 64), (8, 512), (1, 512)):
                begun = time.process_time()
                if not place(nodes, Request(gpus, workers, pack=True)).fits:
                    raise RuntimeError(f"{workers} workers of {gpus} GPUs do not fit")
                seconds = time.process_time() - begun
                yield Time(count, f"{share:.0%} of the GPUs", network, f"{workers} x {gpus} GPUs", seconds)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Compare and measure, and write the tables and the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sizes", default="8,24,64", help="nodes of the jobs, with commas between")
    parser.add_argument("--nodes", type=int, default=10_000, help="on which the time is measured; 0: none")
    parser.add_argument("--slurm", type=Path, help="folder with the unpacked packages of Slurm; else without Slurm")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    given = parser.parse_args()
    rows = list(compare(given.seeds, [int(size) for size in given.sizes.split(",")], given.slurm))
    measured = list(times(given.nodes)) if given.nodes else []
    cells = (
        (one.fabric, str(one.nodes), one.program, f"{one.leaves:.1f}", f"{one.ring:.1f}", f"{one.pairs:.3f}")
        for one in rows
    )
    text = table(("fabric", "nodes", "program", "leaves", "ring", "all-to-all"), cells)
    if measured:
        shown = ((str(one.nodes), one.busy, one.network, one.job, f"{one.cpu_seconds:.2f}") for one in measured)
        text += "\n" + table(("nodes", "busy", "network", "job", "cpu s"), shown)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "placement_traffic.txt").write_text(text)
    document = {"traffic": list(map(dataclasses.asdict, rows)), "times": list(map(dataclasses.asdict, measured))}
    (given.out / "placement_traffic.json").write_text(json.dumps(document, indent=1) + "\n")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
