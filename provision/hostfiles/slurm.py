"""SLURM_HOSTFILE: a name for each task, for ``srun --distribution=arbitrary``."""

from __future__ import annotations

from collections.abc import Sequence

from provision.hostfiles.base import HostEntry

__all__ = ["render"]


def render(entries: Sequence[HostEntry]) -> str:
    """Return each entry's name as often as it has slots, a name a line."""
    return "".join(f"{entry.name}\n" * entry.slots for entry in entries)
