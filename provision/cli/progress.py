"""Live progress of an apply on stderr: a row per task on a terminal, otherwise a summary every few seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.batch.durations import elapsed
from provision.cli import live_progress
from provision.cli.common import say
from provision.cli.levels import quiet
from provision.cli.live_progress import LiveProgress, timed
from provision.report import layout
from provision.report.grouping import grouped
from provision.report.node_names import in_short

if TYPE_CHECKING:
    from provision.engine import Event

_SPINNER = "|/-\\"


class Steps:
    """Reports each step of a long command with the time since its start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def step(self, message: str) -> None:
        """Report the start of a step."""
        if not quiet():
            say(timed(self._start, message))


class ApplyProgress(LiveProgress):
    """Context manager that shows the events of an apply as they arrive.

    On a terminal it shows a row per task with its nodes and its time, otherwise a summary of all nodes every few
    seconds if something changed. With `verbose` it shows a row per node, or a line for every role, change and failure
    of every node. A log file gets the lines also if a terminal shows the rows.
    """

    def __init__(self, nodes: Sequence[str], doing: str = "applying", *, verbose: bool = False) -> None:
        super().__init__()
        self._nodes = list(nodes)
        self._doing = doing
        self._verbose = verbose
        self._current = dict.fromkeys(nodes, "waiting")
        self._at = dict.fromkeys(nodes, "")
        self._failed: dict[str, str] = {}
        self._changes = dict.fromkeys(nodes, 0)
        self._roles: dict[str, str | None] = dict.fromkeys(nodes)
        self._begun = dict.fromkeys(nodes, self._start)
        self._due = dict.fromkeys(nodes, float("inf"))

    def event(self, event: Event) -> None:
        """Process one event."""
        with self._lock:
            self._changes[event.node] += event.status == "changed"
            if event.status in {"failed", "unreachable"}:
                self._current[event.node] = f"{event.status.upper()} at {_place(event)}"
                self._failed[event.node] = event.status
            elif event.status == "start":
                self._current[event.node] = _place(event)
                self._at[event.node] = event.role or event.task
            elif event.status == "ok" and event.role is None:
                self._current[event.node], self._at[event.node] = f"{event.task}: done", ""
            elif event.status == "waiting":
                self._current[event.node] = event.task
                self._at[event.node] = "waiting"
            self._begun[event.node] = time.monotonic()
            self._due[event.node] = live_progress.LONG_SECONDS if event.status in {"start", "waiting"} else float("inf")
            if self._verbose and not self._quiet:
                self._line(event)

    def _summary(self) -> str:
        """Return a summary of the nodes: roles, changes, failures, and the longest running task."""
        at: dict[str, list[str]] = {}
        for name in self._nodes:
            if name not in self._failed and self._at[name]:
                at.setdefault(self._at[name], []).append(name)
        parts = [", ".join(f"{role} on {in_short(names)}" for role, names in at.items())]
        changes = sum(self._changes.values())
        parts += [f"{changes} change{'s' * (changes != 1)}"] if changes else []
        for status in dict.fromkeys(self._failed.values()):
            names = [name for name, own in self._failed.items() if own == status]
            parts.append(f"{status.upper()}: {in_short(names)}")
        return "; ".join(filter(None, [*parts, self._longest()]))

    def _longest(self) -> str:
        now = time.monotonic()
        late = [name for name in self._nodes if now - self._begun[name] >= self._due[name]]
        if not late:
            return ""
        name = min(late, key=self._begun.__getitem__)
        seconds = int((now - self._begun[name]) / live_progress.LONG_SECONDS) * live_progress.LONG_SECONDS
        return f"{name} for over {elapsed(seconds)} at {self._current[name]}"

    def _rows(self) -> tuple[list[str], list[str]]:
        """Return the titles, and a row per current task; with `verbose` per node."""
        now = time.monotonic()
        groups = grouped(self._current.items(), lambda name, at: (at, name if self._verbose else ""))
        names = [in_short(group.names) for group in groups]
        width = max(len("NODES"), min(max(map(len, names)), self._columns // 3))
        rows = [
            f"{layout.shortened_name(shown, width):<{width}}  {sum(self._changes[name] for name in group.names):>7}  "
            f"{elapsed(max(self._seconds(name, now) for name in group.names)):>6}  {group.value}"
            for shown, group in zip(names, groups, strict=True)
        ]
        seconds = now - self._start
        head = f"{_SPINNER[int(seconds * len(_SPINNER)) % len(_SPINNER)]} {self._doing}, {elapsed(seconds)}"
        titles = f"{'NODES':<{width}}  CHANGED    TIME  TASK"
        return [head, titles], rows

    def _seconds(self, name: str, now: float) -> float:
        """Return the time of the node's current task, or for a node that failed or is done, the time until then."""
        begun, ended = self._begun[name], name in self._failed or self._current[name].endswith(": done")
        return begun - self._start if ended else now - begun

    def _line(self, event: Event) -> None:
        """Print a line when a node starts a role, and for every change and failure."""
        if event.status == "start" and event.role and self._roles[event.node] != event.role:
            self._roles[event.node] = event.role
            self._print(timed(self._start, f"{event.node}: {event.role}"))
        elif event.status == "waiting":
            self._print(timed(self._start, f"{event.node}: {event.task}"))
        elif event.status in {"changed", "failed", "unreachable"}:
            self._print(timed(self._start, f"{event.node}: {_place(event)}: {event.status}"))

    def _report(self) -> None:
        """Until the end, print summaries; with `verbose`, report tasks that take long."""
        if not self._verbose:
            super()._report()
        while not self._over.wait(live_progress.LONG_SECONDS / 10):
            now = time.monotonic()
            with self._lock:
                late = [name for name in self._nodes if now - self._begun[name] >= self._due[name]]
                for name in late:
                    self._due[name] *= 2
                    at = f"{self._current[name]}: for {elapsed(now - self._begun[name])} now"
                    self._print(timed(self._start, f"{name}: {at}"))


def _place(event: Event) -> str:
    """Return the role and the task, or the task alone outside of roles."""
    return f"{event.role}: {event.task}" if event.role else event.task
