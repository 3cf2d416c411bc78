"""horovodrun's dialect. It starts the same number of ranks on every host."""

from __future__ import annotations

from collections.abc import Sequence

from provision.errors import UsageError
from provision.hostfiles import openmpi
from provision.hostfiles.base import HostEntry, slot_table

__all__ = ["render"]


def render(entries: Sequence[HostEntry]) -> str:
    """Return a line ``NAME slots=N`` for each entry; UsageError when N is not the same for all."""
    if len({entry.slots for entry in entries}) > 1:
        fewest = min(entry.slots for entry in entries)
        raise UsageError(
            "horovodrun starts as many ranks on each host, and these have different numbers of slots",
            remedy=f"Choose nodes that are alike (--limit), or {fewest * len(entries)} ranks by mpirun "
            "(--launcher openmpi).",
            output=slot_table(entries),
        )
    return openmpi.render(entries)
