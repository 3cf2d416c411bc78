"""Messages on stderr and their levels (``--loglevel debug|info|warn|error``), in arena's format."""

from __future__ import annotations

import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from provision.cli import log_file
from provision.errors import UsageError
from provision.report import layout

_LEVELS = ("debug", "info", "warn", "error")
_BEGUN = time.monotonic()
_SOON = 2.0
"""Seconds after which an action is reported."""
_chosen = {"level": "info"}


def choose(level: str) -> None:
    """Print only messages of `level` and above.

    Raises:
        UsageError: The level is unknown.
    """
    word = {"warning": "warn"}.get(level, level)
    if word not in _LEVELS:
        raise UsageError(f"--loglevel {level}: unknown log level", remedy=f"Choose {', '.join(_LEVELS)}.")
    _chosen["level"] = word
    if word == "debug":
        receive_messages()


def receive_messages() -> None:
    """Print the messages of the other packages, which they send to the logger ``provision``."""
    import logging

    class _Printer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            (debug if record.levelno < logging.WARNING else say)(record.getMessage())

    logger = logging.getLogger("provision")
    logger.handlers = [_Printer()]
    logger.setLevel(logging.DEBUG if _chosen["level"] == "debug" else logging.WARNING)


def quiet() -> bool:
    """Return whether only results, warnings and errors are printed (``-q``, ``--loglevel warn`` and above)."""
    return _LEVELS.index(_chosen["level"]) > _LEVELS.index("info")


def say(message: str) -> None:
    """Print a message for the user on stderr; terminal control characters are removed."""
    text = _fitted(printable(message)) if sys.stderr.isatty() else printable(message)
    sys.stderr.write(layout.painted(text, colour=sys.stderr.isatty()) + "\n")
    sys.stderr.flush()
    log_file.record("stderr", layout.painted(text, colour=False))


def _fitted(text: str) -> str:
    """Return the text with its long lines wrapped between words, for the terminal; below their own indentation."""
    columns = max(layout.NARROWEST // 2, shutil.get_terminal_size().columns)
    lines: list[str] = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        wrapped = textwrap.wrap(line, columns, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
        lines += wrapped if layout.length(line) > columns else [line]
    return "\n".join(lines)


def note(message: str) -> None:
    """Report progress or a next step on stderr; nothing with ``--quiet``."""
    if not quiet():
        say(message)


def printable(text: str) -> str:
    """Return the text without terminal control characters."""
    return without_controls(text, lambda _: "?")


def without_controls(text: str, instead: Callable[[str], str]) -> str:
    """Replace unprintable characters and lone surrogates, which no stream accepts."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t\u00a0" or layout.is_mark(letter) else instead(letter)
        for letter in text
    )


def debug(message: str) -> None:
    """Print a message for debugging."""
    _say("debug", message)


def info(message: str) -> None:
    """Report progress."""
    _say("info", message)


def warn(message: str) -> None:
    """Report a possible mistake."""
    _say("warn", message)


@contextmanager
def patience(message: str) -> Iterator[None]:
    """Report an action when it takes more than two seconds."""
    timer = threading.Timer(_SOON, note, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(level: str, message: str) -> None:
    if _LEVELS.index(level) >= _LEVELS.index(_chosen["level"]) and not sys.stderr.closed:
        say(f"{level.upper()}[{int(time.monotonic() - _BEGUN):04d}] {message}")
