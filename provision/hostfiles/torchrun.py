"""What torchrun must be told on each node; it reads no host file."""

from __future__ import annotations

from collections.abc import Sequence

from provision.hostfiles.base import HostEntry

__all__ = ["render"]


def render(entries: Sequence[HostEntry]) -> str:
    """Return a line ``NAME NODE_RANK NPROC MASTER_ADDR MASTER_PORT`` for each entry; the first is the master."""
    return "".join(
        f"{entry.name} {number} {entry.slots} {entries[0].address} {entries[0].free_port}\n"
        for number, entry in enumerate(entries)
    )
