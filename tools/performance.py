"""Results of benchmarks, in docs/data/performance.json: `python -m tools.performance record`, or `gate`.

Each benchmark adds its run to build/bench/performance.json. `record` copies these runs to the repository, from which
`tools.performance_page` makes a page. `gate` compares the ratios of these runs with the recorded ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs/data/performance.json"
RUNS = ROOT / "build/bench"
NAME = "performance.json"
LIMIT = 1.15
"""The largest accepted ratio of a ratio, new / recorded."""


@dataclass(frozen=True)
class Measurement:
    """A program at a task."""

    task: str
    nodes: int
    program: str
    runs: int
    seconds: float
    """The median time of the whole process."""
    cpu_seconds: float | None
    """The median processor time of the process and of what it started."""
    command: str
    """The command that repeats the measurement of this task."""


@dataclass(frozen=True)
class Run:
    """A run of a benchmark."""

    benchmark: str
    title: str
    commit: str
    """The full hash of the measured commit; empty if files were modified before or during the run."""
    date: str
    """The day, as ``2026-11-29`` (UTC)."""
    processor: str
    processors: int
    memory_gib: int
    load_before: float
    load_after: float
    ours: list[str]
    """The programs that are compared with the other ones."""
    notes: list[str]
    measurements: list[Measurement]

    @property
    def circumstances(self) -> str:
        """The commit, the hardware and the load, in a line."""
        return (
            f"Measured on {self.date} at commit {self.commit[:12] or '(modified files)'}: {self.processors} processors "
            f"({self.processor}), {self.memory_gib} GiB of memory, load average {self.load_before:.1f} before and "
            f"{self.load_after:.1f} after."
        )


class Recorder:
    """Collects the measurements of a run, which begins now."""

    def __init__(self, benchmark: str, title: str, *, ours: Sequence[str], notes: Sequence[str] = ()) -> None:
        self._benchmark, self._title, self._ours, self._notes = benchmark, title, list(ours), list(notes)
        self._load, self._commit = os.getloadavg()[0], _commit()
        self._measurements: list[Measurement] = []

    def add(
        self,
        task: str,
        nodes: int,
        program: str,
        seconds: Sequence[float],
        command: str,
        cpu_seconds: Sequence[float] = (),
    ) -> None:
        """Add the times of a program."""
        cpu = round(statistics.median(cpu_seconds), 3) if cpu_seconds else None
        median = round(statistics.median(seconds), 3)
        self._measurements.append(Measurement(task, nodes, program, len(seconds), median, cpu, command))

    def save(self, folder: Path = RUNS) -> Run:
        """Write the run to a folder, in place of an earlier run of the benchmark, and return it."""
        processor, memory = _hardware()
        run = Run(
            benchmark=self._benchmark,
            title=self._title,
            commit=self._commit if self._commit == _commit() else "",
            date=datetime.now(UTC).date().isoformat(),
            processor=processor,
            processors=os.cpu_count() or 1,
            memory_gib=memory,
            load_before=round(self._load, 1),
            load_after=round(os.getloadavg()[0], 1),
            ours=self._ours,
            notes=self._notes,
            measurements=self._measurements,
        )
        write([run], folder / NAME)
        return run


def _hardware() -> tuple[str, int]:
    """Return the processor's name and the memory in GiB."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), os.uname().machine)
    return name, round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def _commit() -> str:
    """Return the commit of the checkout, empty if files are modified."""
    git = ["git", "-C", str(ROOT)]
    status = subprocess.run([*git, "status", "--porcelain"], check=True, capture_output=True, text=True).stdout
    own = ("docs/data/performance.json", "docs/reference/performance.md", "docs/assets/performance-")
    if any(not line[3:].startswith(own) for line in status.splitlines()):
        return ""
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def read(file: Path = FILE) -> list[Run]:
    """Return the runs of a file; none if it does not exist."""
    if not file.exists():
        return []
    rows = json.loads(file.read_text(encoding="utf-8"))
    return [Run(**{**row, "measurements": [Measurement(**one) for one in row["measurements"]]}) for row in rows]


def write(new: Sequence[Run], file: Path = FILE) -> None:
    """Add runs to a file; each replaces an older one of the same benchmark."""
    runs = {run.benchmark: run for run in [*read(file), *new]}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([asdict(runs[name]) for name in sorted(runs)], indent=1) + "\n", encoding="utf-8")


Key = tuple[str, int, str, str, str]
"""Task, nodes, our program, the other program, and what is compared: ``time`` or ``processor time``."""


def ratios(run: Run) -> dict[Key, float]:
    """Return ours / other for each of our programs and each other program with the same task and nodes."""
    compared = {}
    for ours in run.measurements:
        for other in run.measurements:
            same = (other.task, other.nodes) == (ours.task, ours.nodes)
            if not same or ours.program not in run.ours or other.program in run.ours:
                continue
            key = (ours.task, ours.nodes, ours.program, other.program)
            if other.seconds:
                compared[*key, "time"] = ours.seconds / other.seconds
            if ours.cpu_seconds is not None and other.cpu_seconds:
                compared[*key, "processor time"] = ours.cpu_seconds / other.cpu_seconds
    return compared


def gate(new: Sequence[Run], recorded: Sequence[Run]) -> tuple[int, list[str]]:
    """Return how many ratios were compared, and a line for each one that is more than 15% above the recorded one."""
    before = {run.benchmark: ratios(run) for run in recorded}
    count, regressions = 0, []
    for run in new:
        for key, value in ratios(run).items():
            old = before.get(run.benchmark, {}).get(key)
            if old is None:
                continue
            count += 1
            if value > old * LIMIT:
                task, nodes, ours, other, what = key
                regressions.append(
                    f"{run.benchmark}: {task}, {nodes} nodes: {what} of {ours} / {other}: "
                    f"{value:.3f}, recorded {old:.3f} ({value / old - 1:+.0%})"
                )
    return count, regressions


def main(argv: Sequence[str] | None = None) -> None:
    """Record the last runs, or compare them with the recorded ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("record", "gate"))
    parser.add_argument("--runs", type=Path, default=RUNS / NAME, help="the file with the last runs")
    parser.add_argument("--recorded", type=Path, default=FILE, help="the file of the repository")
    given = parser.parse_args(argv)
    new = read(given.runs)
    if given.what == "record":
        modified = [run.benchmark for run in new if not run.commit]
        if modified or not new:
            cause = f"files were modified during {', '.join(modified)}" if modified else "no runs"
            raise SystemExit(f"{given.runs}: nothing was recorded ({cause})")
        write(new, given.recorded)
        return
    count, regressions = gate(new, read(given.recorded))
    sys.stdout.write("".join(f"{line}\n" for line in regressions))
    if not count:
        raise SystemExit(f"{given.runs}: no ratio is recorded (other tasks, programs or numbers of nodes)")
    sys.stdout.write(f"{count} ratios compared, {len(regressions)} more than {LIMIT - 1:.0%} above the recorded ones\n")
    raise SystemExit(bool(regressions))


if __name__ == "__main__":
    main()
