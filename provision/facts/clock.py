"""What time it is on a node."""

from __future__ import annotations

from typing import ClassVar

from provision.facts.base import RawOutput, Unknown

__all__ = ["ClockFact"]

_MOST_SECONDS = 10**15


class ClockFact:
    """Asks for the seconds since 1970; apart from all else, because no two looks and no two nodes say the same."""

    name: ClassVar[str] = "clock"
    label: ClassVar[str] = "date"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = "date +%s"

    def parse(self, raw: RawOutput) -> int | Unknown:
        """A clock that was set back far enough shows a time before 1970."""
        try:
            seconds = int(raw.stdout)
        except ValueError:
            return Unknown(f"date does not tell the time: {raw.said()}")
        if abs(seconds) >= _MOST_SECONDS:
            return Unknown(f"date does not tell the time: {raw.said()[:40]}")
        return seconds
