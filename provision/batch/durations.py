"""Parse and format durations."""

from __future__ import annotations

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)(ms|[smhdw])")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?")
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 31536000


def duration(text: str) -> float:
    """Return the seconds of ``90s``, ``2m``, ``1h30m``, ``3d``, or of ``1:30:00`` and ``2-12:00:00`` as in Slurm.

    Raises:
        ValueError: invalid; also a number without a unit, which some tools read as minutes.
    """
    word = text.strip().lower()
    if word == "0":
        return 0.0
    clock = _CLOCK.fullmatch(word)
    if clock:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return float(days * _DAY + hours * _HOUR + minutes * _MINUTE + seconds)
    parts = _PART.findall(word)
    if not parts or "".join(number + unit for number, unit in parts) != word:
        raise ValueError(f"invalid duration {text!r}; write 90s, 2m, 1h30m or 3d")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def short(seconds: float) -> str:
    """Return a duration in one unit, rounded down as in kubectl: ``45s``, ``12m``, ``3h``, ``2d``, ``1y``."""
    whole = max(0, int(seconds))
    for size, unit in ((_YEAR, "y"), (_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def elapsed(seconds: float) -> str:
    """Return how long something took or takes, in at most two units: ``45s``, ``2m05s``, ``1h02m``, ``3d04h``."""
    whole = max(0, round(seconds))
    for size, below, units in ((_DAY, _HOUR, "dh"), (_HOUR, _MINUTE, "hm"), (_MINUTE, 1, "ms")):
        if whole >= size:
            return f"{whole // size}{units[0]}{whole % size // below:02d}{units[1]}"
    return f"{whole}s"
