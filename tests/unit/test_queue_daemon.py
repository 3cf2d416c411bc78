"""A daemon starts pending jobs soon, rests when none is pending, and ends when it gets a signal."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from provision.errors import NodeUnreachable
from provision.jobs.engines.base import MaintenanceResult as Pass
from provision.workflow.queue_daemon import serve
from tests.support.memory_engine import MemoryEngine


class Stop(threading.Event):
    """Notes how long is waited, and is set after so many waits."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self._times = times

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(round(timeout or 0))
        if len(self.pauses) == self._times:
            self.set()
        return self.is_set()


def served(*tries: Pass | Exception, changes: int = 0, **more: float) -> tuple[list[float], list[str], list[str]]:
    """Return the pauses, the jobs that were started, and what was warned of."""
    engine, stop = MemoryEngine(), Stop(len(tries))
    engine.passes, engine.changes = list(tries), changes
    started: list[str] = []
    warned: list[str] = []
    serve(engine, stop, say=lambda _line: None, started=started.append, warn=warned.append, **more)
    return stop.pauses, started, warned


def test_scheduling_is_frequent_only_while_a_job_waits() -> None:
    """Nodes do not report a GPU that another user's process released; idle nodes are not probed needlessly."""
    pauses, started, _ = served(
        Pass((), ("a", "b")),
        Pass(("a",), ("b",)),
        Pass(("b",), ()),
        Pass(),
    )

    assert pauses == [15, 15, 30, 30]
    assert started == ["a", "b"]


def test_a_custom_interval_is_used() -> None:
    assert served(Pass((), ("a",)), Pass(), every=60.0)[0] == [60, 60]


def test_the_duration_of_a_pass_is_part_of_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at many nodes takes time; the next look begins 15 s after the last one began, but never at once."""
    clock = iter([0.0, 3.0, 20.0, 42.0])
    monkeypatch.setattr("provision.workflow.queue_daemon.time.monotonic", lambda: next(clock))

    assert served(Pass((), ("a",)), Pass((), ("a",)))[0] == [12, 1]


def test_a_change_on_a_node_triggers_a_pass_after_a_short_pause() -> None:
    """A second after; with a time of one's own they are not even asked."""
    assert served(Pass(), Pass(), Pass(), changes=2)[0] == [1, 1, 30]
    assert served(Pass(), Pass(), changes=2, every=5.0)[0] == [5, 5]


def test_an_error_is_reported_once_and_passes_continue() -> None:
    """And again when it comes again."""
    away = NodeUnreachable("gpu1, which keeps the queue, does not answer")
    pauses, started, warned = served(away, away, Pass(("a",)), away)

    assert (len(pauses), started) == (4, ["a"])
    assert warned == [str(away)] * 2


def test_sigterm_ends_the_daemon_after_the_current_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """As systemd stops a service: what has begun ends first, the command returns, and the handler is the old one."""
    from provision.cli.queue import _serve

    engine = MemoryEngine()
    ended = []

    def slow(_say: object, **_more: object) -> Pass:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        ended.append(True)
        return Pass((), ("a",))

    monkeypatch.setattr(engine, "maintain", slow)
    before = signal.getsignal(signal.SIGTERM)
    _serve(engine, 0.0)

    assert ended == [True]
    assert signal.getsignal(signal.SIGTERM) == before
