"""``make bench-look``: the cost of probing many nodes, each program a whole process, all in one run.

``python -m tests.benchmarks.many_nodes --nodes 10,100,1000 --program 'plan=provision plan --json -i {inventory}'``
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import plot
from tests.benchmarks.measure import Cost, measure
from tests.benchmarks.simulated_nodes import Nodes, SimulatedNodes
from tools.performance import Recorder

__all__ = ["PROGRAMS", "Result", "run"]

ROOT = Path(__file__).resolve().parents[2]
BASE = "paramiko"
PROGRAMS = {
    BASE: "{python} -m tests.benchmarks.fan_out paramiko {inventory}",
    "fabric": "{python} -m tests.benchmarks.fan_out fabric {inventory}",
    "connectors": "{python} -m tests.benchmarks.fan_out connectors {inventory}",
    "probe and verify": "{python} -m tests.benchmarks.look {inventory}",
    "plan": "{python} -m provision plan --json -i {inventory}",
    "plan again": "{python} -m provision plan --json -i {inventory}",
}
OURS = ("connectors", "probe and verify", "plan", "plan again")
NOTES = """
The nodes are SIMULATED: an SSH server on this machine answers for each of them, with a host key of its own.
paramiko, fabric and connectors (the SSH layer of `provision`) run `true` on each node; the others probe it.
""".strip().splitlines()
_SLOW = {"login_seconds": 0.5, "smi_seconds": 3.0}
_SLOWEST = 3.5
_TITLES = ("nodes", "program", "seconds", "x", "cpu s", "ms/node", "MiB", "threads", "files", "status")


@dataclass(frozen=True)
class Result:
    """One program on so many nodes."""

    nodes: int
    program: str
    slow: bool
    """Whether the nodes take 0.5 s to log in and 3 s for nvidia-smi."""
    cost: Cost


def run(
    counts: Sequence[int], programs: dict[str, str], *, slow: bool = False, cache: Path | None = None
) -> list[Result]:
    """Measure each of `programs` on each number of nodes; in the cache an inventory is found the second time."""
    results = []
    for count in counts:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            home = cache or Path(folder) / "cache"
            options = _SLOW if slow else {}
            with SimulatedNodes(Path(folder) / "nodes", Nodes(count, applied=True, **options)) as nodes:
                for name, words in programs.items():
                    argv = [
                        word.format(python=sys.executable, inventory=nodes.inventory) for word in shlex.split(words)
                    ]
                    cost = measure(argv, environment={"XDG_CACHE_HOME": str(home)}, cwd=ROOT)
                    results.append(Result(count, name, slow, cost))
                    _say(results[-1])
    return results


def table(results: Sequence[Result]) -> str:
    """Lay the results out; ``x`` is the time against the bare library's on the same nodes."""
    base = {(result.nodes, result.slow): result.cost.seconds for result in results if result.program == BASE}
    parts = []
    for slow in (False, True):
        chosen = [result for result in results if result.slow is slow]
        if not chosen:
            continue
        last = "beyond" if slow else "x"
        rows = [[last if title == "x" else title for title in _TITLES]]
        for result in chosen:
            cost, bare = result.cost, base.get((result.nodes, result.slow))
            ratio = f"{cost.seconds - _SLOWEST:+.2f}" if slow else f"{cost.seconds / bare:.2f}" if bare else "-"
            each = f"{1000 * cost.cpu_seconds / result.nodes:.1f}"
            rows.append(
                [
                    str(result.nodes), result.program, f"{cost.seconds:.2f}", ratio, f"{cost.cpu_seconds:.2f}", each,
                    f"{cost.rss_mib:.0f}", str(cost.threads), str(cost.files), str(cost.code),
                ]
            )  # fmt: skip
        widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
        head = "Slow nodes: login 0.5 s, nvidia-smi 3 s" if slow else "Nodes that answer at once"
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        parts.append("\n".join([head, *lines]))
    return "\n\n".join(parts) + "\n"


def curves(results: Sequence[Result], value: str) -> dict[str, list[tuple[float, float]]]:
    """Return for each program its line over the number of nodes."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for result in results:
        if not result.slow:
            lines.setdefault(result.program, []).append((result.nodes, getattr(result.cost, value)))
    return lines


def _say(result: Result) -> None:
    kind = "slow " if result.slow else ""
    cost = result.cost
    sys.stderr.write(f"{result.nodes} {kind}nodes, {result.program}: {cost.seconds:.2f} s, status {cost.code}\n")
    if cost.code:
        sys.stderr.write(cost.err[-1000:])


def main() -> None:
    """Measure, and write the table, the numbers and two plots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="10,100,1000")
    parser.add_argument("--slow-nodes", default="8,100")
    parser.add_argument("--program", action="append", default=[], metavar="NAME=COMMAND LINE")
    parser.add_argument("--only", help="names of programs, with commas between")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    given = parser.parse_args()
    programs = PROGRAMS | dict(text.split("=", 1) for text in given.program)
    if given.only:
        programs = {name: programs[name] for name in given.only.split(",")}
    load = os.getloadavg()[0]
    recorder = Recorder("many_nodes", "A probe of many SIMULATED nodes", ours=OURS, notes=NOTES)
    results = run([int(word) for word in given.nodes.split(",") if word], programs)
    results += run([int(word) for word in given.slow_nodes.split(",") if word], programs, slow=True)
    given.out.mkdir(parents=True, exist_ok=True)
    head = (
        f"SIMULATED nodes on this machine ({os.cpu_count()} processors, load {load:.1f} before), "
        f"{time.strftime('%Y-%m-%d %H:%M')}. How to read it: tests/benchmarks/README.md\n\n"
    )
    (given.out / "many_nodes.txt").write_text(head + table(results))
    for result in results:
        option = f"--nodes '' --slow-nodes {result.nodes}" if result.slow else f"--nodes {result.nodes} --slow-nodes ''"
        recorder.add(
            "slow nodes" if result.slow else "probe", result.nodes, result.program, [result.cost.seconds],
            f'make bench-look BENCH_LOOK="{option}"', [result.cost.cpu_seconds],
        )  # fmt: skip
    if not any(result.cost.code for result in results):
        recorder.save(given.out)
    rows = [{**dataclasses.asdict(result), "load": load} for result in results]
    for row in rows:
        row["cost"] = {key: value for key, value in row["cost"].items() if key not in {"out", "err"}}
    (given.out / "many_nodes.json").write_text(json.dumps(rows, indent=1) + "\n")
    for value, unit in (("seconds", "s"), ("rss_mib", "MiB")):
        title = f"A probe of many SIMULATED nodes: {'time' if unit == 's' else 'memory'} of the whole process"
        (given.out / f"many_nodes_{value}.svg").write_text(plot.lines(title, unit, curves(results, value)))
    sys.stdout.write(head + table(results))
    raise SystemExit(any(result.cost.code for result in results))


if __name__ == "__main__":
    main()
