"""Maintenance windows: the times at which nodes may be rebooted, such as ``Sat 02:00-06:00 Europe/Berlin``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FORM = re.compile(r"(?P<days>[A-Za-z,-]+) +(?P<start>[0-9]{2}:[0-9]{2})-(?P<end>[0-9]{2}:[0-9]{2}) +(?P<zone>\S+)")
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
_MOST = 20
"""Maximum number of windows of a node."""
_WEEK = 7
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Window:
    """A window that opens on some days of each week."""

    text: str
    days: frozenset[int]
    """Days on which it opens; Monday is 0."""
    start: time
    end: time
    """Not later than `start`: on the following day."""
    zone: ZoneInfo

    def around(self, now: datetime) -> Iterator[tuple[datetime, datetime]]:
        """Yield the times from yesterday to next week at which it opens and closes, in order."""
        today = now.astimezone(self.zone).date()
        for offset in range(-1, _WEEK + 1):
            day = today + offset * _DAY
            if day.weekday() in self.days:
                yield self._at(day, self.start), self._at(day + (self.end <= self.start) * _DAY, self.end)

    def _at(self, day: date, clock: time) -> datetime:
        """Return a moment; one that the change to summer time skips is as long after the last one before it."""
        return datetime.combine(day, clock, self.zone).astimezone(UTC).astimezone(self.zone)


def parse_windows(text: str) -> tuple[Window, ...]:
    """Return the windows of ``cluster_window``, which are separated by semicolons; empty without any.

    Raises:
        ValueError: it is invalid; the message is the end of a sentence that begins with the value.
    """
    if not text.strip():
        return ()
    parts = [part.strip() for part in text.split(";")]
    if len(parts) > _MOST:
        raise ValueError(f"has more than {_MOST} windows")
    return tuple(_parsed(part) for part in parts)


def _parsed(text: str) -> Window:
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"is not of the form DAYS HH:MM-HH:MM ZONE ('{text}')")
    start, end = _clock(match["start"]), _clock(match["end"])
    if start == end:
        raise ValueError(f"opens and closes at the same time ('{text}')")
    return Window(text, frozenset(_days(match["days"])), start, end, _zone(match["zone"]))


def _clock(text: str) -> time:
    try:
        return time.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"has an invalid time ('{text}')") from error


def _days(text: str) -> Iterator[int]:
    if text.lower() == "daily":
        yield from range(_WEEK)
        return
    for part in text.lower().split(","):
        first, dash, last = part.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise ValueError(f"has an invalid day ('{part}'; use Mon to Sun, Mon-Fri or daily)")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        yield from (day % _WEEK for day in range(begin, end + 1 if end >= begin else end + 1 + _WEEK))


def _zone(name: str) -> ZoneInfo:
    names = "use a name such as Europe/Berlin or UTC; the controller needs the package tzdata"
    problem = f"has an unknown time zone ('{name}'; {names})"
    if not _ZONE.fullmatch(name):
        raise ValueError(problem)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(problem) from error


def is_open(windows: tuple[Window, ...], now: datetime) -> bool:
    """Return whether any window is open."""
    now = now.astimezone(UTC)  # times of one zone are compared by their clocks, also where summer time ends
    return any(opens <= now < closes for window in windows for opens, closes in window.around(now))


def next_opening(windows: tuple[Window, ...], now: datetime) -> datetime | None:
    """Return when the next window opens, in its own time zone; None without windows."""
    now = now.astimezone(UTC)
    times = [opens for window in windows for opens, _ in window.around(now) if opens > now]
    return min(times, default=None)
