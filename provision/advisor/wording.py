"""Text fragments shared by findings."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["few", "percent"]

_SHOWN = 3


def few(texts: Sequence[str]) -> str:
    """Return the first three texts and the number of further ones."""
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more


def percent(value: float) -> str:
    """Format a percentage."""
    return f"{value:.0f} %"
