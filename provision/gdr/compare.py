"""Comparison of version numbers of drivers, kernels and libraries."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=1024)
def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``5.15.0-105-generic`` is (5, 15, 0)."""
    match = re.match(r"\d{1,18}(?:\.\d{1,18})*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def at_least(version: str, bound: str) -> bool:
    """Return whether `version` is `bound` or newer; 6.4 and 6.4.0 are the same."""
    own, other = numbers(version), numbers(bound)
    length = max(len(own), len(other))
    return own + (0,) * (length - len(own)) >= other + (0,) * (length - len(other))
