"""Live progress of a copy of an image between nodes on stderr."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from provision.batch.durations import elapsed
from provision.cli.live_progress import LiveProgress
from provision.report.grouping import grouped
from provision.report.node_names import in_short

_PER_CENT = 100


@dataclass
class _Row:
    step: str = "waiting"
    done: int = 0
    total: int = 0
    received: int = 0

    def text(self) -> str:
        """Return the step, and how much of it is done."""
        if not self.total or self.step == "done":
            return self.step
        return f"{self.step} {self.done * _PER_CENT // self.total}% of {self.total / 1e6:.0f} MB"


class CopyProgress(LiveProgress):
    """Context manager that shows what each node does, and the throughput of all."""

    def __init__(self, nodes: Sequence[str], doing: str) -> None:
        super().__init__()
        self._nodes = {name: _Row() for name in nodes}
        self._doing = doing
        self._before = self._start, 0
        self._rate = 0.0

    def report(self, node: str, step: str, done: int, total: int, received: int) -> None:
        """Set the progress of a node."""
        with self._lock:
            self._nodes[node] = _Row(step, done, total, max(received, self._nodes[node].received))

    def _throughput(self) -> str:
        """Return the bytes per second that arrive on all nodes together."""
        now, total = time.monotonic(), sum(row.received for row in self._nodes.values())
        then, before = self._before
        if now - then >= 1:
            self._rate, self._before = (total - before) / (now - then), (now, total)
        return f"{self._rate / 1e6:.0f} MB/s on all nodes together" if self._rate else ""

    def _summary(self) -> str:
        """Return the steps with their nodes, of several nodes the least share, and the throughput."""
        parts = []
        for group in grouped(self._nodes.items(), lambda _, row: row.step):
            slowest = min((self._nodes[name] for name in group.names), key=lambda row: row.done / (row.total or 1))
            parts.append(f"{in_short(group.names)}: {slowest.text()}")
        return "; ".join(filter(None, [", ".join(parts), self._throughput()]))

    def _rows(self) -> tuple[list[str], list[str]]:
        """Return the throughput, and a row per node."""
        head = f"{self._doing}, {elapsed(time.monotonic() - self._start)}  {self._throughput()}"
        return [head], [f"{name:<20}  {row.text()}" for name, row in self._nodes.items()]
