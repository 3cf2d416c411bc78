"""Words that several checks put together in the same way."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["few", "few_names", "slot_of", "span"]

_SHOWN = 4
_HOUR = 3600


def few(texts: Sequence[str]) -> str:
    """Return the first four, and how many more there are."""
    more = f"; and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more


def few_names(names: Sequence[str], most: int = 6) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def slot_of(address: str) -> str:
    """Return domain, bus and device of a PCI address in lower case: nvidia-smi prints eight digits of the domain."""
    domain, _, rest = address.lower().partition(".")[0].partition(":")
    return f"{domain[-4:]}:{rest}"


def span(seconds: float) -> str:
    """Return a length of time as a person says it, e.g. ``3 days``."""
    for name, length in (("days", 24 * _HOUR), ("hours", _HOUR), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {name}"
    return f"{max(seconds, 0):.0f} seconds"
