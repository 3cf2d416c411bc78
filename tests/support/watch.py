"""Inspects all processes of this machine, including those in containers, for texts that must not be visible there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self

__all__ = ["Watch"]


class Watch(threading.Thread):
    """Reads the arguments and environments of all processes, until it is left.

    Args:
        forms: the texts, in each spelling.
        seconds: how long it rests between two looks.
        may: whether a process, by its arguments, is one that has to hold them.
    """

    def __init__(
        self, forms: Sequence[str], seconds: float = 0.01, may: Callable[[list[str]], bool] = lambda _words: False
    ) -> None:
        super().__init__(daemon=True)
        self.leaks: set[str] = set()
        """``arguments of PROGRAM`` or ``environment of PROGRAM``."""
        self.programs: set[str] = set()
        """The first words of all that was seen; `there` are those of other process namespaces: nodes, containers."""
        self.there: set[str] = set()
        self._forms = [form.encode() for form in forms]
        self._seconds, self._may = seconds, may
        self._own = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
        self._seen: dict[str, bytes] = {}
        """The arguments of each process at its last inspection: a process with a new program is inspected again."""
        self._over = threading.Event()
        self._rounds, self._round = 0, threading.Condition()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_ignored: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        """Look again and again."""
        while not self._over.wait(self._seconds):
            for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
                with suppress(OSError):
                    self._look(f"/proc/{pid}")
            with self._round:
                self._rounds += 1
                self._round.notify_all()

    def inspect_all(self) -> None:
        """Wait until each process that exists now was inspected."""
        with self._round:
            enough = self._rounds + 2  # the present round may have passed it already
            assert self._round.wait_for(lambda: self._rounds >= enough, timeout=300), "the inspection has ended"

    def _look(self, place: str) -> None:
        argv = _content(f"{place}/cmdline")
        if self._seen.get(place) == argv:
            return
        self._seen[place] = argv
        environment = _content(f"{place}/environ")
        words = [word.decode(errors="replace") for word in argv.split(b"\0")]
        seen = " ".join(words[:2])
        (self.programs if os.readlink(f"{place}/ns/pid") == self._own else self.there).add(seen)  # noqa: PTH115
        for what, text in (("arguments", argv), ("environment", environment)):
            if any(form in text for form in self._forms) and not self._may(words):
                self.leaks.add(f"{what} of {words[0]}")


def _content(path: str) -> bytes:
    with open(path, "rb") as stream:  # noqa: PTH123 - a hundred times a second for each process
        return stream.read()
