"""How much a node may send and how long it may take: for each command, and for all commands of a connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from provision.errors import ConnectionFailed

__all__ = [
    "EXIT_SECONDS",
    "OUTPUT_LIMIT",
    "RUN_SECONDS",
    "SEND_SECONDS",
    "SESSION_LIMIT",
    "Allowance",
    "collected",
    "late",
    "started",
]

OUTPUT_LIMIT = 64 * 1024 * 1024
"""Bytes that one command may print; a stream without a natural end (a followed log) is started without a limit."""
SESSION_LIMIT = 4 * OUTPUT_LIMIT
"""Bytes that all commands of one connection may print."""
RUN_SECONDS = 3600.0
"""How long a command may run whose caller states no time."""
SEND_SECONDS = 60.0
"""How long a node may refuse to take input."""
EXIT_SECONDS = 60.0
"""How long a node may withhold the exit status after the end of the output."""


class Allowance:
    """The bytes that a node may still send."""

    def __init__(self, node: str, limit: int) -> None:
        self._node, self._limit, self._left = node, limit, limit

    def spend(self, size: int) -> None:
        """Note that `size` bytes were received.

        Raises:
            ConnectionFailed: these are more than were allowed.
        """
        self._left -= size
        if self._left < 0:
            raise ConnectionFailed(
                f"it sent more than {_shown(self._limit)}, the limit",
                node=self._node,
                remedy="Check the node: a program there prints without end, or the node is manipulated.",
            )


def collected(output: Iterable[tuple[str, bytes]]) -> tuple[str, str]:
    """Return all of standard output and of standard error."""
    pieces: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    for stream, chunk in output:
        pieces[stream].append(chunk)
    out, errors = (b"".join(pieces[name]).decode(errors="replace") for name in ("stdout", "stderr"))
    return out, errors


class _Process(Protocol):
    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...


P = TypeVar("P", bound=_Process)


def started(process: P, script: bytes) -> P:
    """Send a process its script and return it; a node that does not take it is left."""
    try:
        process.write(script)
    except BaseException:
        process.close()
        raise
    return process


def late(node: str, seconds: float | None = None) -> ConnectionFailed:
    """Return the error of a command that takes too long; `seconds` is the time limit that a person set."""
    if seconds is not None:
        return ConnectionFailed(
            f"the command did not end within its time limit of {seconds:g} s, and the connection to it was closed",
            node=node,
            remedy="Give it more time (--timeout), or see whether the node is overloaded.",
        )
    return ConnectionFailed(
        "a command gave no result in the time allowed for it",
        node=node,
        remedy="See whether the node is overloaded or a disk of it hangs.",
    )


def _shown(size: int) -> str:
    return f"{size // 1024 // 1024} MiB" if size >= 1024 * 1024 else f"{size // 1024} KiB"
