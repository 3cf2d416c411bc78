"""Programs of the controller as ``RemoteProcess``, for the local and the OpenSSH connector."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from provision.connectors.limits import (
    EXIT_SECONDS,
    OUTPUT_LIMIT,
    SEND_SECONDS,
    Allowance,
    collected,
    late,
)
from provision.errors import ConnectionFailed, ProvisionError
from provision.model import CommandResult


class LocalProcess:
    """A child process with pipes, in its own session, so that Ctrl-C reaches it only through this process."""

    def __init__(
        self,
        node: str,
        argv: Sequence[str],
        *,
        judge: Callable[[int, str], ProvisionError | None] | None = None,
        limit: int | None = OUTPUT_LIMIT,
    ) -> None:
        self.deadline: float | None = None
        self._node, self._judge = node, judge
        self._allowance = Allowance(node, limit) if limit is not None else None
        try:
            self._child = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise ConnectionFailed(
                f"the program {argv[0]} cannot be started: {error.strerror}",
                node=node,
                remedy=f"install {argv[0]}",
            ) from error
        self._chunks: queue.Queue[tuple[str, bytes | None]] = queue.Queue(maxsize=64)
        self._stderr_tail = b""
        # Without it, a write could reach the next process, whose pipe has the number of the one that was just closed.
        self._stdin_lock = threading.Lock()
        if self._child.stdin is not None:
            os.set_blocking(self._child.stdin.fileno(), False)
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
        """Send `data` to standard input; ConnectionFailed if none of it is accepted for a minute.

        Data for a command that has ended is discarded.
        """
        stream = self._child.stdin
        if stream is None or stream.closed:
            return
        rest = memoryview(data)
        with contextlib.suppress(OSError, ValueError):  # it has ended or was closed
            ready = select.poll()
            ready.register(stream.fileno(), select.POLLOUT)
            while rest:
                if not ready.poll(SEND_SECONDS * 1000):
                    raise ConnectionFailed("a command accepted no input for a minute", node=self._node)
                with self._stdin_lock:
                    rest = rest[stream.write(rest) or 0 :]

    def close_stdin(self) -> None:
        """Close the command's standard input."""
        if self._child.stdin is not None:
            with self._stdin_lock, contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()

    def output(self) -> Iterator[tuple[str, bytes]]:
        """Yield ``("stdout"|"stderr", chunk)`` as it arrives, until the command ends.

        ConnectionFailed if it exceeds the limit of output or time.
        """
        open_streams, has_ended = 2, False
        while open_streams:
            left = None if self.deadline is None else self.deadline - time.monotonic()
            if left is not None and left <= 0:
                raise late(self._node)
            try:
                name, chunk = self._chunks.get(timeout=1.0 if left is None else min(1.0, left))
            except queue.Empty:
                if has_ended:
                    return  # a background child keeps the output open although the command has ended
                has_ended = self._child.poll() is not None  # its last output may not have been read yet
                continue
            if chunk is None:
                open_streams -= 1
                continue
            if self._allowance is not None:
                self._allowance.spend(len(chunk))
            yield name, chunk

    def ended(self) -> bool:
        """Return at once whether the command has ended. Remaining output can still be read."""
        return self._child.poll() is not None

    def wait(self) -> int:
        """Return the exit status, 128+n for a signal; ConnectionFailed if the transport failed."""
        try:
            left = EXIT_SECONDS if self.deadline is None else max(0.01, self.deadline - time.monotonic())
            code = self._child.wait(left)
        except subprocess.TimeoutExpired:
            raise late(self._node) from None
        failure = self._judge(code, self._stderr_tail.decode(errors="replace")) if self._judge else None
        if failure is not None:
            raise failure
        return code if code >= 0 else 128 - code

    def result(self, stdin: bytes, seconds: float) -> CommandResult:
        """Send `stdin` and return all output and the exit status; ConnectionFailed on a timeout."""

        def feed() -> None:
            with contextlib.suppress(ConnectionFailed):
                self.write(stdin)
            self.close_stdin()

        self.deadline = time.monotonic() + seconds
        threading.Thread(target=feed, daemon=True).start()
        try:
            return CommandResult(*collected(self.output()), self.wait())
        finally:
            self.close()

    def close(self) -> None:
        """End the transport: close its input, and kill it if it does not end."""
        self.close_stdin()
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(2)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
