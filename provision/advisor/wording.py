"""Words that several findings put together in the same way."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["few", "percent"]

_SHOWN = 3


def few(texts: Sequence[str]) -> str:
    """Return the first three, and how many more there are."""
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more


def percent(value: float) -> str:
    """Write a percentage."""
    return f"{value:.0f} %"
