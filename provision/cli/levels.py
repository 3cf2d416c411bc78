"""How much is said on stderr (``--loglevel debug|info|warn|error``), in lines as arena's."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from provision.errors import UsageError

__all__ = ["choose", "debug", "info", "patience", "quiet", "warn"]

_LEVELS = ("debug", "info", "warn", "error")
_BEGUN = time.monotonic()
_SOON = 2.0
"""Seconds after which a person wonders."""
_chosen = {"level": "info"}


def choose(level: str) -> None:
    """Say only what is at least as grave as `level`.

    Raises:
        UsageError: there is no such level.
    """
    word = {"warning": "warn"}.get(level, level)
    if word not in _LEVELS:
        raise UsageError(f"--loglevel {level}: unknown log level", remedy=f"Choose {', '.join(_LEVELS)}.")
    _chosen["level"] = word


def quiet() -> bool:
    """Return whether only results, warnings and errors are printed (``-q``, ``--loglevel warn`` and above)."""
    return _LEVELS.index(_chosen["level"]) > _LEVELS.index("info")


def debug(message: str) -> None:
    """Say what only somebody who looks for a fault wants to know."""
    _say("debug", message)


def info(message: str) -> None:
    """Say how it goes."""
    _say("info", message)


def warn(message: str) -> None:
    """Say what may be a mistake."""
    _say("warn", message)


@contextmanager
def patience(message: str) -> Iterator[None]:
    """Say what is being done when it takes more than two seconds."""
    timer = threading.Timer(_SOON, info, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(level: str, message: str) -> None:
    from provision.cli.common import say_wrapped

    if _LEVELS.index(level) >= _LEVELS.index(_chosen["level"]) and not sys.stderr.closed:
        say_wrapped(f"{level.upper()}[{int(time.monotonic() - _BEGUN):04d}] {message}")
