"""Hydra's dialect: MPICH's ``-f`` and Intel MPI's ``-machinefile``, which fill hosts in the order of the lines."""

from __future__ import annotations

from collections.abc import Sequence

from provision.hostfiles.base import HostEntry

__all__ = ["render"]


def render(entries: Sequence[HostEntry]) -> str:
    """Return a line ``NAME:N`` for each entry."""
    return "".join(f"{entry.name}:{entry.slots}\n" for entry in entries)
