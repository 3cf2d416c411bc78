"""Limits of output and time: for each command, and for all commands of a connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from provision.errors import ConnectionFailed

OUTPUT_LIMIT = 64 * 1024 * 1024
"""Maximum output of one command in bytes; a stream without a natural end (a followed log) has no limit."""
SESSION_LIMIT = 4 * OUTPUT_LIMIT
"""Maximum output of all commands of one connection in bytes."""
RUN_SECONDS = 3600.0
"""Default time limit of a command."""
SEND_SECONDS = 60.0
"""Time limit for a node that does not accept input."""
EXIT_SECONDS = 60.0
"""Time limit for the exit status after the end of the output."""


class Allowance:
    """Number of bytes that a node may still send."""

    def __init__(self, node: str, limit: int) -> None:
        self._node, self._limit, self._left = node, limit, limit

    def spend(self, size: int) -> None:
        """Count `size` received bytes.

        Raises:
            ConnectionFailed: The limit is exceeded.
        """
        self._left -= size
        if self._left < 0:
            raise ConnectionFailed(
                f"it sent more than the limit of {_shown(self._limit)}",
                node=self._node,
                remedy="Check the node: a program prints endlessly, or the node is compromised.",
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
    """Send a script to a process and return the process; if the node does not accept it, close the process."""
    try:
        process.write(script)
    except BaseException:
        process.close()
        raise
    return process


def late(node: str, seconds: float | None = None) -> ConnectionFailed:
    """Return the error of a command that takes too long; `seconds` is the time limit that the user set."""
    if seconds is not None:
        return ConnectionFailed(
            f"the command did not end within its time limit of {seconds:g} s, and the connection to it was closed",
            node=node,
            remedy="Increase the time limit (--timeout), or check whether the node is overloaded.",
        )
    return ConnectionFailed(
        "a command did not end within its time limit",
        node=node,
        remedy="Check whether the node is overloaded or one of its disks hangs.",
    )


def _shown(size: int) -> str:
    return f"{size // 1024 // 1024} MiB" if size >= 1024 * 1024 else f"{size // 1024} KiB"
