"""Comparing the versions that drivers, kernels and libraries carry."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["at_least", "numbers"]


@lru_cache(maxsize=1024)
def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with: ``5.15.0-105-generic`` is (5, 15, 0)."""
    found = re.match(r"\d{1,18}(?:\.\d{1,18})*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def at_least(version: str, bound: str) -> bool:
    """Return whether `version` is `bound` or newer; 6.4 and 6.4.0 are the same."""
    mine, other = numbers(version), numbers(bound)
    length = max(len(mine), len(other))
    return mine + (0,) * (length - len(mine)) >= other + (0,) * (length - len(other))
