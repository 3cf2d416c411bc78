"""The time of a node's clock."""

from __future__ import annotations

from typing import ClassVar

from provision.facts.base import RawOutput, Unknown

_MOST_SECONDS = 10**15


class ClockFact:
    """Reads the seconds since 1970."""

    name: ClassVar[str] = "clock"
    label: ClassVar[str] = "date"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = "date +%s"

    def parse(self, raw: RawOutput) -> int | Unknown:
        """Accept times before 1970 too: a clock may have been set back that far."""
        try:
            seconds = int(raw.stdout)
        except ValueError:
            return Unknown(f"date printed no time: {raw.last_line()}")
        if abs(seconds) >= _MOST_SECONDS:
            return Unknown(f"date printed no valid time: {raw.last_line()[:40]}")
        return seconds
