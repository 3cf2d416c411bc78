"""The interface to a node: run, start, put, get. Implementations live beside this file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from provision.connectors.limits import OUTPUT_LIMIT
from provision.model import CommandResult

__all__ = ["Connector", "RemoteProcess"]


class RemoteProcess(Protocol):
    """A command that runs on a node while we talk to it."""

    deadline: float | None
    """When its output and its exit status must have come, by `time.monotonic`; None for a stream without an end."""

    def write(self, data: bytes) -> None:
        """Send `data` to its standard input; ConnectionFailed when the node is gone."""

    def close_stdin(self) -> None:
        """Let the command see the end of its input."""

    def output(self) -> Iterator[tuple[str, bytes]]:
        """Yield ``("stdout"|"stderr", chunk)`` as it arrives, until the command ends."""

    def ended(self) -> bool:
        """Return at once whether the command has ended or the node is gone; what it said last can still be read."""

    def wait(self) -> int:
        """Return the exit status; ConnectionFailed when the connection broke before there was one."""

    def close(self) -> None:
        """Drop the connection; the far side sees the end of its input."""


class Connector(Protocol):
    """A way to one node. Methods raise ConnectionFailed (reach, trust, login) and nothing else."""

    name: str
    agent: bool
    """Whether the job agent answers: `JOB_AGENT` is the only script, and its input is a request about jobs."""

    def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        become: bool = True,
        limit: int = OUTPUT_LIMIT,
    ) -> CommandResult:
        """Run a POSIX shell script and wait for it; a non-zero exit is a result, not an error.

        `become` runs it as root (sudo, unless already root). `timeout` is in seconds, an hour where it is None. A node
        that sends more than `limit` bytes is given up.
        """

    def start(self, script: str, *, become: bool = True, limit: int | None = OUTPUT_LIMIT) -> RemoteProcess:
        """Start a POSIX shell script whose input and output stay connected to us.

        A node that sends more than `limit` bytes is given up. None is for streams without a natural end: whoever reads
        one keeps no more of it than a bounded part.
        """

    def put(self, local: Path, remote: str) -> None:
        """Copy one local file to an absolute path on the node."""

    def get(self, remote: str, local: Path) -> None:
        """Copy one file from the node."""

    def close(self) -> None:
        """End the connection; a connector can be closed twice."""
