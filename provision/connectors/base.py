"""Interface of connections to nodes: run, start, put, get. The other modules of this package implement it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from provision.connectors.limits import OUTPUT_LIMIT
from provision.model import CommandResult


class RemoteProcess(Protocol):
    """A running command on a node with a connected standard input and output."""

    deadline: float | None
    """Time limit for output and exit status, by `time.monotonic`; None for a stream without an end."""

    def write(self, data: bytes) -> None:
        """Send `data` to standard input; ConnectionFailed if the connection is lost."""

    def close_stdin(self) -> None:
        """Close the command's standard input."""

    def output(self) -> Iterator[tuple[str, bytes]]:
        """Yield ``("stdout"|"stderr", chunk)`` as it arrives, until the command ends."""

    def ended(self) -> bool:
        """Return at once whether the command or the connection has ended. Remaining output can still be read."""

    def wait(self) -> int:
        """Return the exit status; ConnectionFailed if the connection was lost before it arrived."""

    def close(self) -> None:
        """Close the connection, which closes the command's standard input."""


class Connector(Protocol):
    """A connection to one node. Methods only raise ConnectionFailed (network, host key or authentication)."""

    name: str
    python: str
    """The interpreter of the node's connection settings."""
    agent: bool
    """Whether the node agent answers. Then `JOB_AGENT` is the only script, and its input is a request about jobs."""

    def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        become: bool = True,
        limit: int = OUTPUT_LIMIT,
    ) -> CommandResult:
        """Run a POSIX shell script and wait for it. A non-zero exit status is a result, not an error.

        `become` runs it as root (with sudo, unless the user is root). `timeout` is in seconds; None is one hour. More
        than `limit` bytes of output raise ConnectionFailed.
        """

    def start(self, script: str, *, become: bool = True, limit: int | None = OUTPUT_LIMIT) -> RemoteProcess:
        """Start a POSIX shell script with a connected standard input and output.

        More than `limit` bytes of output raise ConnectionFailed. None is for streams without a natural end; the reader
        must limit what it stores.
        """

    def put(self, local: Path, remote: str) -> None:
        """Copy one local file to an absolute path on the node."""

    def get(self, remote: str, local: Path) -> None:
        """Copy one file from the node."""

    def close(self) -> None:
        """Close the connection. Repeated calls have no effect."""
