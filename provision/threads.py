"""Run a function over many items in daemon threads."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


_NAP_SECONDS = 0.002
_LATE_SECONDS = 0.004
_BUSY = 0.5
"""Used fraction of a processor from which more threads only slow each other down: Python uses one processor."""
_FEW = 16
"""This many threads start without delay."""
_MANY = 64
"""From this number on, more threads are useful only while the running ones mostly wait."""
_AFTER_FEW, _AFTER_MANY = (1, 1, 0.05), (3, 4, 0.5)
"""Required consecutive idle samples, number of threads that then start, and the maximum wait in seconds."""


class ThreadRateLimiter:
    """Rate limiter for new threads that adapts to the load of this process.

    Threads that compute at the same time take twice as long as one after the other. The next thread starts when this
    process is mostly idle, because it waits for nodes, and sleeping threads wake up in time.
    """

    def __init__(
        self,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
    ) -> None:
        self._sleep, self._now, self._used = sleep, now, used
        self._granted = 0

    def wait(self, begun: int) -> None:
        """Wait until one more thread may start; `begun` threads have been started."""
        if begun < _FEW:
            return
        if self._granted:
            self._granted -= 1
            return
        naps, together, longest = _AFTER_FEW if begun < _MANY else _AFTER_MANY
        end, quiet = self._now() + longest, 0
        while quiet < naps:
            quiet = quiet + 1 if self._is_quiet() else 0
            if self._now() >= end:
                return
        self._granted = together - 1

    def _is_quiet(self) -> bool:
        before, used = self._now(), self._used()
        self._sleep(_NAP_SECONDS)
        seconds, used = self._now() - before, self._used() - used
        return seconds < _NAP_SECONDS + _LATE_SECONDS and used < _BUSY * seconds


def outcomes(
    function: Callable[[In], Out],
    items: Sequence[In],
    *,
    limit: int,
    pace: ThreadRateLimiter | None = None,
    patience: float | None = None,
    meanwhile: Callable[[], None] | None = None,
    answered: float = 0.0,
) -> list[Out | Exception]:
    """Call `function` for all items, at most `limit` at the same time; return results or exceptions in order.

    If the system refuses more threads, the existing ones process all items. Unlike an executor's, the threads are
    daemons, so that a hanging node does not block the exit after Ctrl-C.

    Args:
        function: Called once per item.
        items: Its arguments.
        limit: Maximum number of threads.
        pace: Limits the rate at which threads start.
        patience: Seconds beyond twice the longest successful call after which the result of an item is `TimeoutError`.
        meanwhile: Called once, in this thread, when the first calls have started.
        answered: Seconds of an earlier successful call; 0 without one.
    """
    todo: queue.SimpleQueue[tuple[int, In]] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Out | Exception]] = queue.SimpleQueue()
    stopped = threading.Event()
    for numbered in enumerate(items):
        todo.put(numbered)

    def work() -> None:
        while not stopped.is_set():
            try:
                number, item = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((number, function(item)))
            except Exception as error:  # noqa: BLE001 - the caller handles it
                done.put((number, error))

    results: dict[int, Out | Exception] = {}
    begun, last = time.monotonic(), answered
    try:
        count = min(limit, len(items))
        _start(work, range(min(count, _FEW)), None, todo.empty)
        if meanwhile is not None:
            meanwhile()
        _start(work, range(_FEW, count), pace, todo.empty)
        while len(results) < len(items):
            with suppress(queue.Empty):
                number, outcome = done.get(timeout=0.5 if patience is None else 0.1)  # not None: Ctrl-C
                results[number] = outcome
                last = last if isinstance(outcome, Exception) else max(last, time.monotonic() - begun)
            if patience is not None and last and time.monotonic() - begun > 2 * last + patience:
                break
    finally:
        stopped.set()
    late = TimeoutError("timed out: it takes much longer than the others")
    return [results.get(number, late) for number in range(len(items))]


def within(seconds: float, function: Callable[[], Out]) -> Out | None:
    """Return the result of `function`, or None after `seconds`. The function then continues in its daemon thread."""
    done: queue.SimpleQueue[list[Out | Exception]] = queue.SimpleQueue()
    threading.Thread(target=lambda: done.put(outcomes(lambda _: function(), [0], limit=1)), daemon=True).start()
    try:
        (outcome,) = done.get(timeout=seconds)
    except queue.Empty:
        return None
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _start(
    work: Callable[[], None], numbers: range, pace: ThreadRateLimiter | None, nothing_left: Callable[[], bool]
) -> None:
    """Start these threads, fewer if the system refuses more or no items are left."""
    for number in numbers:
        if pace is not None:
            pace.wait(number)
        if nothing_left():
            return
        try:
            threading.Thread(target=work, daemon=True).start()
        except RuntimeError:
            if number:
                return
            raise
