"""The same for many things at once, in threads that nobody has to wait for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

__all__ = ["Pace", "outcomes", "within"]

In = TypeVar("In")
Out = TypeVar("Out")


_NAP_SECONDS = 0.002
_LATE_SECONDS = 0.004
_BUSY = 0.5
"""The part of a processor in use from which on more at once would only be in each other's way: Python has one."""
_FEW = 16
"""As many begin without waiting."""
_MANY = 64
"""From here on more are of use only if those that have begun do little but wait."""
_AFTER_FEW, _AFTER_MANY = (1, 1, 0.05), (3, 4, 0.5)
"""Naps in a row that have to be quiet, how many begin then, and the longest wait in seconds."""


class Pace:
    """Lets work begin as fast as this machine keeps up with what has begun already.

    Threads that compute at the same time cost twice what they cost one after the other. So the next one begins when
    this process does little but wait, for slow nodes or silent ones, and a thread that sleeps is woken in time.
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
        """Return when one more may begin beside those that have `begun`."""
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
    pace: Pace | None = None,
    patience: float | None = None,
    meanwhile: Callable[[], None] | None = None,
    answered: float = 0.0,
) -> list[Out | Exception]:
    """Call `function` for all items, at most `limit` at once; an item's exception is its outcome.

    With `pace` they begin no faster than it lets them. Where no more threads can be had, those that there are do it.
    With `patience` the outcome is a `TimeoutError` of those that take so many seconds longer than twice the time in
    which another one has come to its end well; `answered` is that of one before these, 0 for none.
    `meanwhile` is called once, in this thread, when the first have begun.

    The threads are daemons: a Ctrl-C leaves at once, where an executor's threads are waited for even at the end of
    the interpreter, and a node that hangs would hold everything up.
    """
    todo: queue.SimpleQueue[tuple[int, In]] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Out | Exception]] = queue.SimpleQueue()
    over = threading.Event()
    for numbered in enumerate(items):
        todo.put(numbered)

    def work() -> None:
        while not over.is_set():
            try:
                number, item = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((number, function(item)))
            except Exception as error:  # noqa: BLE001 - whoever asked judges it
                done.put((number, error))

    found: dict[int, Out | Exception] = {}
    begun, last = time.monotonic(), answered
    try:
        count = min(limit, len(items))
        _start(work, range(min(count, _FEW)), None, todo.empty)
        if meanwhile is not None:
            meanwhile()
        _start(work, range(_FEW, count), pace, todo.empty)
        while len(found) < len(items):
            # With a limit: a Ctrl-C that comes just before a wait begins would not end one without.
            with suppress(queue.Empty):
                number, outcome = done.get(timeout=0.5 if patience is None else 0.1)
                found[number] = outcome
                last = last if isinstance(outcome, Exception) else max(last, time.monotonic() - begun)
            if patience is not None and last and time.monotonic() - begun > 2 * last + patience:
                break
    finally:
        over.set()
    late = TimeoutError("it takes much longer than the others")
    return [found.get(number, late) for number in range(len(items))]


def within(seconds: float, function: Callable[[], Out]) -> Out | None:
    """Return what `function` returns, or None when it takes longer; then it goes on, and nobody waits for it."""
    done: queue.SimpleQueue[list[Out | Exception]] = queue.SimpleQueue()
    threading.Thread(target=lambda: done.put(outcomes(lambda _: function(), [0], limit=1)), daemon=True).start()
    try:
        (outcome,) = done.get(timeout=seconds)
    except queue.Empty:
        return None
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _start(work: Callable[[], None], numbers: range, pace: Pace | None, nothing_left: Callable[[], bool]) -> None:
    """Start these threads, or as many as the system gives, or as there is something left to do for."""
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
