"""Sees what this process does while a command runs: files it writes, programs it starts, connections it makes."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.hostile.mutation import MARK

__all__ = ["Guard"]

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = frozenset({
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.chown", "os.truncate",
    "os.utime", "shutil.rmtree", "shutil.move", "shutil.copyfile", "os.setxattr",
})  # fmt: skip
_STARTS = frozenset({"subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system"})
_WITH_VALUE = frozenset({"-L", "-o", "-F", "-i", "-p", "-l", "-J"})
"""Options of ssh whose value is the next word."""


class Guard:
    """Judges what happens inside `watch`; one for the whole process, as audit hooks cannot be removed."""

    def __init__(self, *allowed: Path) -> None:
        self._allowed = tuple(str(path.resolve()) + "/" for path in allowed)
        self._on = False
        self.problems: list[str] = []
        self.started: list[Sequence[str]] = []
        sys.addaudithook(self._hook)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Take note of problems meanwhile."""
        self.problems.clear()
        self.started.clear()
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITES:
                self._written(event, path)
        elif event in _CHANGES:
            for path in arguments[: 2 if event in {"os.rename", "os.link", "shutil.move", "shutil.copyfile"} else 1]:
                self._written(event, path)
        elif event in _STARTS:
            self._program(event, arguments)
        elif event == "socket.connect":
            address = arguments[1]
            if not isinstance(address, str | bytes):
                self.problems.append(f"it connects to {address!r}")

    def _written(self, event: str, path: Any) -> None:
        if isinstance(path, int) or path is None:
            return
        text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - what the call itself would make of it
        real = os.path.realpath(text)
        if text.startswith(("/dev/null", "/dev/tty", "/proc/self/")) or f"{real}/".startswith(self._allowed):
            return
        self.problems.append(f"{event}: {text}")

    def _program(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.system":
            self.problems.append(f"a shell: {arguments!r}")
            return
        words = [os.fsdecode(word) for word in arguments[1]] if not isinstance(arguments[1], str) else [arguments[1]]
        self.started.append(words)
        program, *rest = words
        if MARK in program or MARK in os.fsdecode(arguments[0] or ""):
            self.problems.append(f"a program of the node's choice: {words!r}")
        if Path(program).name in {"sh", "bash", "dash"} and any(MARK in word for word in rest):
            self.problems.append(f"a shell reads the node's words: {words!r}")
        previous = ""
        for word in rest:
            if word == "--":
                break
            if MARK in word and word.startswith("-") and previous not in _WITH_VALUE:
                self.problems.append(f"the node's word is an option: {words!r}")
            if MARK in word and previous == "-o":
                self.problems.append(f"the node's word is an option: {words!r}")
            previous = word


def temporary_root() -> Path:
    """Where temporary files go."""
    return Path(tempfile.gettempdir())
