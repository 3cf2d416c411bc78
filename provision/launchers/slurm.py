"""SLURM_HOSTFILE for ``srun --distribution=arbitrary``."""

from __future__ import annotations

from collections.abc import Sequence

from provision.launchers.base import HostEntry, Launcher


def _host_file(entries: Sequence[HostEntry]) -> str:
    """Return each entry's name as often as it has slots, a name a line."""
    return "".join(f"{entry.name}\n" * entry.slots for entry in entries)


LAUNCHERS = (Launcher("slurm", order=8, host_file=_host_file),)
