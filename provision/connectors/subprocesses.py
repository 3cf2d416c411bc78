"""Programs of this machine as ``RemoteProcess``: shared by the local and the OpenSSH connector."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from provision.errors import ConnectionFailed, ProvisionError
from provision.model import CommandResult

__all__ = ["LocalProcess", "finish"]


class LocalProcess:
    """A child process with pipes, in a session of its own, so that a Ctrl-C here reaches it only through us."""

    def __init__(
        self, node: str, argv: Sequence[str], *, judge: Callable[[int, str], ProvisionError | None] | None = None
    ) -> None:
        self._node, self._judge = node, judge
        try:
            self._child = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=_environment(),
            )
        except OSError as error:
            raise ConnectionFailed(
                f"the program {argv[0]} cannot be started here: {error.strerror}",
                node=node,
                remedy=f"install {argv[0]}",
            ) from error
        self._chunks: queue.Queue[tuple[str, bytes | None]] = queue.Queue(maxsize=64)
        self._stderr_tail = b""
        for name, stream in (("stdout", self._child.stdout), ("stderr", self._child.stderr)):
            if stream is not None:
                threading.Thread(target=self._read, args=(name, stream), daemon=True).start()

    def _read(self, name: str, stream: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(stream.fileno(), 65536):
                if name == "stderr":
                    self._stderr_tail = (self._stderr_tail + chunk)[-8192:]
                self._chunks.put((name, chunk))
        self._chunks.put((name, None))

    def write(self, data: bytes) -> None:
        """Send `data` to its standard input; a command that has ended lets the data fall."""
        if self._child.stdin is not None and not self._child.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.write(data)
                self._child.stdin.flush()

    def close_stdin(self) -> None:
        """Let the command see the end of its input."""
        if self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()

    def output(self, deadline: float | None = None) -> Iterator[tuple[str, bytes]]:
        """Yield ``("stdout"|"stderr", chunk)`` as it arrives, until the command ends."""
        open_streams = 2
        while open_streams:
            try:
                name, chunk = self._chunks.get(timeout=1.0 if deadline is None else min(1.0, _left(deadline)))
            except queue.Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    raise ConnectionFailed(
                        "a command gave no result in the time allowed for it",
                        node=self._node,
                        remedy="the machine may be overloaded or its disk may hang; look at it by hand",
                    ) from None
                if self._child.poll() is not None:
                    return  # a child in the background holds the output open; the command itself is over
                continue
            if chunk is None:
                open_streams -= 1
            else:
                yield name, chunk

    def ended(self) -> bool:
        """Return at once whether the command has ended; what it said last can still be read."""
        return self._child.poll() is not None

    def wait(self) -> int:
        """Return the exit status, 128+n for a signal; ConnectionFailed when the transport itself failed."""
        code = self._child.wait()
        failure = self._judge(code, self._stderr_tail.decode(errors="replace")) if self._judge else None
        if failure is not None:
            raise failure
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        """End the transport: its input is closed, and what does not go by itself is ended."""
        self.close_stdin()
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(2)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()


def _left(deadline: float) -> float:
    return max(0.01, deadline - time.monotonic())


def _environment() -> Mapping[str, str]:
    return dict(os.environ)


def finish(process: LocalProcess, stdin: bytes, timeout: float | None) -> CommandResult:
    """Feed `stdin`, collect all output and the exit status."""

    def feed() -> None:
        process.write(stdin)
        process.close_stdin()

    threading.Thread(target=feed, daemon=True).start()
    out: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    try:
        for stream, chunk in process.output(None if timeout is None else time.monotonic() + timeout):
            out[stream].append(chunk)
        code = process.wait()
    finally:
        process.close()
    stdout, stderr = (b"".join(out[name]).decode(errors="replace") for name in ("stdout", "stderr"))
    return CommandResult(stdout, stderr, code)
