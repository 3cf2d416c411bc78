"""``make bench-revisions BEFORE=CHECKOUT``: two checkouts beside each other, in turns, in one run.

Each checkout has its own ``.venv`` and its own container lab, converged by its own roles.
Rows: ``plan`` of SIMULATED nodes, a converged ``apply``, and ``submit`` until the first line of the job.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.support.command import ROOT

LIMIT = 1.10
"""The largest accepted ratio of the medians, after / before."""


class Checkout:
    """A checkout whose own command is measured."""

    def __init__(self, label: str, folder: Path, state: Path) -> None:
        self.label, self.folder = label, folder.resolve()
        self.lab = f"{label}{os.getpid()}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "PROVISION_INVENTORY"},
            "PYTHONPATH": str(self.folder),
            "XDG_STATE_HOME": str(state),
            "NO_COLOR": "1",
        }

    def argv(self, *words: str) -> list[str]:
        """Return a command line of this checkout's Python."""
        return [str(self.folder / ".venv/bin/python"), "-m", *words]

    def run(self, *words: str, extra: Mapping[str, str] | None = None) -> str:
        """Run a module to its end and return what it prints; it must succeed."""
        done = subprocess.run(
            self.argv(*words),
            cwd=self.folder,
            env={**self.environment, **(extra or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{self.label}: {' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def seconds(self, *words: str, extra: Mapping[str, str] | None = None) -> float:
        """Return how long a module takes from start to end."""
        begun = time.monotonic()
        self.run(*words, extra=extra)
        return time.monotonic() - begun

    def seconds_to_first_line(self, *words: str) -> float:
        """Return how long it takes to the first line on stdout; the program then runs to its end."""
        begun = time.monotonic()
        with subprocess.Popen(
            self.argv(*words), cwd=self.folder, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as child:  # fmt: skip
            assert child.stdout
            line = child.stdout.readline()
            seconds = time.monotonic() - begun
            _, errors = child.communicate()
        if not line or child.returncode:
            raise SystemExit(f"{self.label}: {' '.join(words)}: exit {child.returncode}\n{errors}")
        return seconds


def in_turns(
    checkouts: Sequence[Checkout], repeat: int, measure: Callable[[Checkout, int], float]
) -> dict[str, list[float]]:
    """Measure each checkout `repeat` times, in turns; each round begins with the other one."""
    times: dict[str, list[float]] = {one.label: [] for one in checkouts}
    for number in range(repeat):
        for one in checkouts if number % 2 == 0 else reversed(checkouts):
            times[one.label].append(measure(one, number))
            sys.stderr.write(f"  {one.label}: {times[one.label][-1]:.2f} s\n")
    return times


def plan_rows(checkouts: Sequence[Checkout], nodes: int, repeat: int) -> dict[str, dict[str, list[float]]]:
    """Measure ``plan`` of simulated nodes: the first time, and with what the first one stored."""
    with ExitStack() as stack:
        inventories: dict[str, Path] = {}
        for number, one in enumerate(checkouts):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            words = (folder, "--nodes", str(nodes), "--port", str(2022 + number))
            server = subprocess.Popen(
                one.argv("tests.benchmarks.simulated_nodes", *words), cwd=one.folder, env=one.environment,
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            stack.callback(server.wait)
            stack.callback(server.send_signal, signal.SIGINT)
            assert server.stderr
            inventories[one.label] = Path(server.stderr.readline().split()[-1])

        def measure(one: Checkout, number: int, *, again: bool) -> float:
            cache = inventories[one.label].parent / f"cache-{0 if again else number}"
            words = ("provision", "plan", "--json", "-i", str(inventories[one.label]))
            return one.seconds(*words, extra={"XDG_CACHE_HOME": str(cache)})

        first = in_turns(checkouts, repeat, lambda one, number: measure(one, number, again=False))
        again = in_turns(checkouts, repeat, lambda one, number: measure(one, number, again=True))
    return {f"plan, {nodes} SIMULATED nodes": first, f"plan again, {nodes} SIMULATED nodes": again}


def lab_rows(checkouts: Sequence[Checkout], nodes: int, repeat: int) -> dict[str, dict[str, list[float]]]:
    """Measure a converged ``apply``, and ``submit`` to the first line, on a lab for each checkout."""
    try:
        for one in checkouts:
            one.run(
                "provision", "lab", "up", one.lab, "--driver", "container", "--nodes", str(nodes), "--machine", "pair"
            )
            one.run("provision", "apply", "--lab", one.lab, "--yes")
        applied = in_turns(
            checkouts, repeat, lambda one, _: one.seconds("provision", "apply", "--lab", one.lab, "--yes")
        )
        image = re.compile(r"training_image_reference: *(\S+)")

        def submit(one: Checkout, number: int) -> float:
            inventory = Path(one.run("provision", "lab", "inventory", one.lab).strip())
            texts = [path.read_text() for path in inventory.parent.rglob("*.yml")]
            reference = next(match[1] for text in texts if (match := image.search(text)))
            return one.seconds_to_first_line(
                "provision", "submit", "pytorch", "--lab", one.lab, f"--image={reference}", "--gpus=1", "--workers=2",
                "--spread", f"--name=bench-{number}", "--follow", "echo begun",
            )  # fmt: skip

        submitted = in_turns(checkouts, repeat, submit)
    finally:
        for one in checkouts:
            subprocess.run(
                one.argv("provision", "lab", "down", one.lab), cwd=one.folder, env=one.environment, check=False
            )
    return {
        f"apply, converged, {nodes} container nodes": applied,
        "submit on two nodes to the first line": submitted,
    }


def table(rows: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Lay the rows out: medians, their ratio, and the range of each."""
    lines = [("task", "before s", "range", "after s", "range", "ratio")]
    for task, times in rows.items():
        before, after = times["before"], times["after"]
        ratio = statistics.median(after) / statistics.median(before)
        lines.append((task, *_cells(before), *_cells(after), f"{ratio:.2f}"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join("  ".join(map(str.ljust, line, widths)).rstrip() + "\n" for line in lines)


def _cells(times: Sequence[float]) -> tuple[str, str]:
    return f"{statistics.median(times):.2f}", f"{min(times):.2f}-{max(times):.2f}"


def main() -> None:
    """Measure, print the table, and write it with the numbers; exit 1 if a ratio exceeds the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, help="the other checkout, with a .venv of its own")
    parser.add_argument("--plan-nodes", type=int, default=1000)
    parser.add_argument("--lab-nodes", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        checkouts = [
            Checkout("before", given.before, Path(folder, "before")),
            Checkout("after", ROOT, Path(folder, "after")),
        ]
        rows = plan_rows(checkouts, given.plan_nodes, given.repeat) if given.plan_nodes else {}
        rows |= lab_rows(checkouts, given.lab_nodes, given.repeat) if given.lab_nodes else {}
    head = f"{os.cpu_count()} processors, load {load:.1f} before, {os.getloadavg()[0]:.1f} after. SIMULATED GPUs.\n\n"
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "revisions.txt").write_text(head + table(rows))
    (given.out / "revisions.json").write_text(json.dumps(rows, indent=1) + "\n")
    sys.stdout.write(head + table(rows))
    slower = [t for t, s in rows.items() if statistics.median(s["after"]) > LIMIT * statistics.median(s["before"])]
    raise SystemExit(f"slower by more than {LIMIT - 1:.0%}: {', '.join(slower)}" if slower else 0)


if __name__ == "__main__":
    main()
