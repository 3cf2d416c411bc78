"""Live display on stderr: rows on a terminal, otherwise a summary every few seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from provision.batch.durations import elapsed
from provision.cli import log_file
from provision.cli.common import printable, say
from provision.cli.levels import quiet
from provision.report import layout

LONG_SECONDS = 30.0
"""Seconds after which a summary is repeated without a change."""
SUMMARY_SECONDS = 5.0
"""Seconds between two summaries without a terminal."""
_MOST_ROWS = 40
_REFRESHES = 4
"""Refreshes of a terminal per second."""


class LiveProgress:
    """Context manager that shows what is done until its end; a log file gets the summaries also beside a terminal.

    `_lock` is held while `_rows` and `_summary` are called.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._lock, self._over = threading.Lock(), threading.Event()
        self._live: Any = None
        self._quiet = False
        self._print: Callable[[str], None] = say
        self._columns = layout.NARROWEST - 1

    def __enter__(self) -> Self:
        """Start the display."""
        self._quiet = quiet()
        if self._quiet:
            return self
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, no_color="NO_COLOR" in os.environ or None)
            self._columns = console.width - 1
            self._live = Live(
                get_renderable=self._table, console=console, refresh_per_second=_REFRESHES, transient=True
            )
            self._live.start()
            self._print = partial(log_file.record, "stderr")
        threading.Thread(target=self._report, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the display and clean up the terminal."""
        self._over.set()
        if self._live:
            self._live.stop()

    def _summary(self) -> str:
        """Return the state of all nodes in one line."""
        raise NotImplementedError

    def _rows(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the titles, and the rows below them, of which a terminal shows the first ones."""
        raise NotImplementedError

    def _report(self) -> None:
        """Until the end, print one line for all nodes every few seconds: at once after a change, otherwise rarely."""
        last, silent = "", 0.0
        while not self._over.wait(SUMMARY_SECONDS):
            with self._lock:
                text = self._summary()
            silent += SUMMARY_SECONDS
            if text and (text != last or silent >= LONG_SECONDS):
                last, silent = text, 0.0
                self._print(timed(self._start, text))

    def _table(self) -> Any:
        from rich.text import Text

        with self._lock:
            text = Text(printable("\n".join(self._lines())))
        text.highlight_words(["FAILED", "UNREACHABLE"], style="red")
        return text

    def _lines(self) -> list[str]:
        """Return what a terminal shows."""
        titles, rows = self._rows()
        left = len(rows) - _MOST_ROWS
        shown = [*titles, *rows[:_MOST_ROWS], *([f"... and {left} more"] if left > 0 else [])]
        return [layout.shortened(line, self._columns) for line in shown]


def timed(start: float, message: str) -> str:
    """Return a message after the time since `start`."""
    return f"[{elapsed(time.monotonic() - start):>6}] {printable(message)}"
