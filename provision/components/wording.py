"""Words for lists of nodes in the reasons of steps."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["listed"]

_SHOWN = 3


def listed(names: Sequence[str]) -> str:
    """Return the names as part of a sentence, at most three of them."""
    if len(names) == 1:
        return names[0]
    more = len(names) - _SHOWN
    return f"{', '.join(names[:_SHOWN])} and {more} more" if more > 0 else f"{', '.join(names[:-1])} and {names[-1]}"
