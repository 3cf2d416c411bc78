"""CPU lists in the format of the kernel."""

from __future__ import annotations

import re

__all__ = ["cpu_set"]

_MOST = 1 << 16


def cpu_set(text: str) -> set[int]:
    """Parse ``0-3,8``; empty for an invalid list."""
    cpus: set[int] = set()
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if ends is None:
            return set()
        first, last = int(ends[1]), int(ends[2] or ends[1])
        cpus.update(range(first, min(last, _MOST) + 1))
    return cpus
