"""Open MPI's dialect, which versions 4 and 5 read, and DeepSpeed too."""

from __future__ import annotations

from collections.abc import Sequence

from provision.hostfiles.base import HostEntry

__all__ = ["render"]


def render(entries: Sequence[HostEntry]) -> str:
    """Return a line ``NAME slots=N`` for each entry."""
    return "".join(f"{entry.name} slots={entry.slots}\n" for entry in entries)
