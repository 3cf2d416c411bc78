"""The same for many things at once, in threads that nobody has to wait for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

__all__ = ["outcomes"]

In = TypeVar("In")
Out = TypeVar("Out")


def outcomes(function: Callable[[In], Out], items: Sequence[In], *, limit: int) -> list[Out | Exception]:
    """Call `function` for all items, at most `limit` at once; an item's exception is its outcome.

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

    for _ in range(min(limit, len(items))):
        threading.Thread(target=work, daemon=True).start()
    found: dict[int, Out | Exception] = {}
    try:
        while len(found) < len(items):
            # With a limit: a Ctrl-C that comes just before a wait begins would not end one without.
            with suppress(queue.Empty):
                number, outcome = done.get(timeout=0.5)
                found[number] = outcome
    finally:
        over.set()
    return [found[number] for number in range(len(items))]
