"""Parsing and formatting of durations."""

import pytest

from provision.batch.durations import duration, elapsed, short


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5), ("2m", 120), ("3h", 10800), ("1h30m", 5400), ("7d", 604800), ("1:30:00", 5400), ("2-00:00", 172800)],
)
def test_durations_are_parsed(text, seconds):
    """Formats of Go's tools and of Slurm."""
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5 minutes", "-5s", "s", "1h-"])
def test_an_invalid_duration_is_refused(text):
    """Also a number without unit: Slurm reads minutes, other tools seconds."""
    with pytest.raises(ValueError, match="write 90s"):
        duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0s"), (57.9, "57s"), (60, "1m"), (3599, "59m"), (3600, "1h"), (86400, "1d"), (366 * 86400, "1y")],
)
def test_ages_have_one_unit(seconds, text):
    """They are rounded down, as in kubectl."""
    assert short(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59.4, "59s"), (59.6, "1m00s"), (125, "2m05s"), (3720, "1h02m"), (90000, "1d01h")],
)
def test_times_of_work_have_two_units(seconds, text):
    """The time of an apply or of a task, for people."""
    assert elapsed(seconds) == text
