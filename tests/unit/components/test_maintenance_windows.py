"""Maintenance windows, with time zones, midnight and the change to summer time."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from provision.components.maintenance_windows import is_open, next_opening, parse_windows

SATURDAY = "Sat 02:00-06:00 Europe/Berlin"


def utc(text):
    """Return a moment."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "now", "expected"),
    [
        (SATURDAY, "2026-12-05T00:59", False),
        (SATURDAY, "2026-12-05T01:00", True),
        (SATURDAY, "2026-12-05T04:59", True),
        (SATURDAY, "2026-12-05T05:00", False),
        (SATURDAY, "2026-12-06T02:00", False),
        ("Fri 22:00-04:00 UTC", "2026-12-05T03:59", True),  # over midnight
        ("Fri 22:00-04:00 UTC", "2026-12-05T22:30", False),
        ("Sat-Mon 22:00-04:00 UTC", "2026-12-08T03:00", True),
        ("Mon,Wed 01:00-02:00 UTC", "2026-12-09T01:30", True),
        ("daily 00:00-23:59 UTC", "2026-12-09T12:00", True),
        (f"{SATURDAY}; Sun 10:00-11:00 UTC", "2026-12-06T10:30", True),
        ("Sat 02:00-06:00 Europe/Berlin", "2026-07-04T00:00", True),  # summer time
        ("Sun 02:30-04:00 Europe/Berlin", "2026-03-29T01:35", True),  # 02:30 does not exist on this day
        ("", "2026-12-05T02:00", False),
    ],
)
def test_a_window_is_open_from_its_first_to_before_its_last_minute(text, now, expected):
    """In its own time zone."""
    assert is_open(parse_windows(text), utc(now)) is expected


def test_the_next_opening_is_in_the_time_zone_of_the_window():
    """Also if the window is open now, and over the change to summer time."""
    windows = parse_windows(SATURDAY)
    berlin = ZoneInfo("Europe/Berlin")

    assert next_opening(windows, utc("2026-12-01T12:00")) == datetime(2026, 12, 5, 2, tzinfo=berlin)
    assert next_opening(windows, utc("2026-12-05T02:00")) == datetime(2026, 12, 12, 2, tzinfo=berlin)
    assert next_opening(parse_windows("Mon 02:00-03:00 Europe/Berlin"), utc("2026-03-28T12:00")) == utc(
        "2026-03-30T00:00"
    )
    assert next_opening((), utc("2026-12-05T02:00")) is None


@pytest.mark.parametrize(
    "text",
    [
        "Sat 02:00-06:00",
        "Sat 2:00-06:00 UTC",
        "Sat 02:00-25:00 UTC",
        "Sat 02:00-02:00 UTC",
        "Sam 02:00-06:00 UTC",
        "Sat- 02:00-06:00 UTC",
        "Sat 02:00-06:00 Mars/Olympus",
        "Sat 02:00-06:00 ../../etc/passwd",
        "Sat 02:00-06:00 UTC;",
        "; ".join(["Sat 02:00-06:00 UTC"] * 21),
    ],
)
def test_invalid_windows_are_refused(text):
    """With the part that is wrong."""
    with pytest.raises(ValueError, match=r"^(is|has|opens) "):
        parse_windows(text)
