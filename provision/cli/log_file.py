"""``--log-file FILE``: a copy of what a command prints, without colours and secrets, with the time of each line."""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
import threading
import time
from typing import TYPE_CHECKING

from provision.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, NoReturn

    from provision.report.redaction import Redactor

_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\^_])")
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Symbolic links are not followed, and a pipe without a reader does not block."""
_LINE_LIMIT = 65536
"""Longest line in bytes that is collected from raw output; a longer one is written in parts."""


class _LogFile:
    """An open log file of this command."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = _opened(path)
        self._lock = threading.Lock()
        self._begun = time.monotonic()
        self._secrets: set[str] = set()
        self._redactor: Redactor | None = None
        self._open_lines: dict[str, bytes] = {}

    def hide(self, secrets: Iterable[str]) -> None:
        """Also remove these values from all further lines."""
        with self._lock:
            self._secrets |= set(secrets)
            self._redactor = None

    def write(self, stream: str, text: str) -> None:
        """Append the lines of a text; secrets are removed."""
        with self._lock:
            self._append(stream, text)

    def write_raw(self, stream: str, data: bytes) -> None:
        """Append the output of a program as soon as a line is complete."""
        with self._lock:
            *lines, last = (self._open_lines.pop(stream, b"") + data).split(b"\n")
            if len(last) > _LINE_LIMIT:
                lines, last = [*lines, last], b""
            self._open_lines[stream] = last
            if lines:
                self._append(stream, b"\n".join(lines).decode(errors="replace"))

    def end(self, code: int) -> None:
        """Append incomplete lines and the exit code, and close the file."""
        from provision.batch.durations import elapsed

        with self._lock:
            for stream, rest in self._open_lines.items():
                if rest:
                    self._append(stream, rest.decode(errors="replace"))
            self._append("exit", f"{code} after {elapsed(time.monotonic() - self._begun)}")
            self._close()

    def redactor(self) -> Redactor:
        """Return the redactor for the secrets that are known now."""
        if self._redactor is None:
            from provision.report.redaction import Redactor

            self._redactor = Redactor(self._secrets)
        return self._redactor

    def _append(self, stream: str, text: str) -> None:
        if self._file < 0:
            return
        head = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {os.getpid()} {stream}: "
        plain = self.redactor().text(_plain(text))
        lines = "".join(f"{head}{line}".rstrip() + "\n" for line in plain.split("\n"))
        data = lines.encode(errors="replace")
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._close()
            sys.stderr.write(f"warning: --log-file {self.path}: cannot be written ({error.strerror})\n")

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


_current: list[_LogFile] = []
"""The log file of this command, if there is one."""


def start(path: str, words: Sequence[str]) -> None:
    """Open the log file and write the command line into it.

    Raises:
        UsageError: The file cannot be written, or must not be.
    """
    if not path or path.startswith("-"):
        raise UsageError(f"--log-file {path}: a file name is required", remedy="Use --log-file FILE or ./-FILE.")
    log = _LogFile(path)
    stop(0)
    _current.append(log)
    log.write("command", shlex.join(["provision", *words]))


def stop(code: int) -> None:
    """Write the exit code of the command and close the log file."""
    while _current:
        _current.pop().end(code)


def options() -> list[str]:
    """Return the options for a command that this one starts, so that it writes into the same log."""
    return [word for log in _current for word in ("--log-file", log.path)]


def record_traceback() -> None:
    """Write the current exception into the log, if there is one."""
    if _current:
        import traceback

        record("stderr", traceback.format_exc())


def hide(secrets: Callable[[], Iterable[str]]) -> None:
    """Remove these values from the log; `secrets` is only called if there is a log."""
    for log in _current:
        log.hide(secrets())


def record(stream: str, text: str) -> None:
    """Write what is printed on a stream into the log, if there is one."""
    for log in _current:
        log.write(stream, text)


def record_document(document: Any, as_text: Callable[[Any], str]) -> None:
    """Write a printed document into the log, if there is one, without the values of keys that name secrets."""
    for log in _current:
        log.write("stdout", as_text(log.redactor().data(document)))


def record_raw(stream: str, data: bytes) -> None:
    """Write the output of a program into the log, if there is one."""
    for log in _current:
        log.write_raw(stream, data)


def _plain(text: str) -> str:
    """Return a text without colours and control characters; of a progress bar the last state of each line remains."""
    text = _ESCAPES.sub("", text)
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.removesuffix("\n").split("\n"))
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in "\n".join(lines))


def _opened(path: str) -> int:
    """Open a file for appending: a new one, or a regular one of this user that is not a symbolic link."""
    try:
        file = os.open(path, _FLAGS, 0o600)
    except OSError as error:
        _refuse(path, "it is a symbolic link" if os.path.islink(path) else error.strerror or str(error))  # noqa: PTH114
    status = os.fstat(file)
    problem = ""
    if not stat.S_ISREG(status.st_mode):
        problem = "it is not a regular file"
    elif status.st_uid != os.geteuid():
        problem = f"it is owned by another user (uid {status.st_uid})"
    if problem:
        os.close(file)
        _refuse(path, problem)
    return file


def _refuse(path: str, cause: str) -> NoReturn:
    raise UsageError(
        f"--log-file {path}: the file cannot be written ({cause})",
        remedy="Use a file in a folder of your own, for example: --log-file ~/provision.log",
    )
