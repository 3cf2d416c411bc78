"""What a host file says, whatever the launcher that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from provision.errors import UsageError

__all__ = ["MASTER_PORT", "HostEntry", "Render", "fitted", "slot_table"]

MASTER_PORT = 29500
"""Where torch's ranks meet unless something else listens there."""


@dataclass(frozen=True)
class HostEntry:
    """One node that can take ranks."""

    name: str
    """The inventory name; it resolves to the data address on nodes and in containers."""
    address: str
    """The data address, for launchers that take no names."""
    slots: int
    kind: str
    """``gpu`` or ``cpu``: what a slot is."""
    cpus: int = field(default=0, compare=False)
    """CPUs of the node; 0 when they are not known."""
    free_port: int = field(default=MASTER_PORT, compare=False)
    """A port of the node that nothing listened on when it was looked at."""


class Render(Protocol):
    """Writes the entries in one launcher's dialect; the text ends with a newline unless there are no entries."""

    def __call__(self, entries: Sequence[HostEntry]) -> str:
        """Return the text of the file; UsageError when the launcher cannot start ranks so."""


def fitted(entries: Sequence[HostEntry], ranks: int | None) -> list[HostEntry]:
    """Return the entries with just as many slots as there are ranks, filled in order; all slots without a number.

    Raises:
        UsageError: there are fewer slots than ranks; the table of slots is its output.
    """
    if ranks is None:
        return list(entries)
    total = sum(entry.slots for entry in entries)
    if not 1 <= ranks <= total:
        raise UsageError(
            f"{ranks} ranks were asked for, but the nodes have {total} slot{'s' * (total != 1)}",
            remedy=f"Ask for 1 to {total} (-n), or add nodes.",
            output=slot_table(entries),
        )
    left, found = ranks, []
    for entry in entries:
        taken = min(entry.slots, left)
        left -= taken
        if taken:
            found.append(replace(entry, slots=taken))
    return found


def slot_table(entries: Sequence[HostEntry]) -> str:
    """The slots of each node, and what a slot is there."""
    width = max(len("node"), *(len(entry.name) for entry in entries))
    rows = [f"{'node':<{width}}  slots  of"]
    rows += [f"{entry.name:<{width}}  {entry.slots:>5}  {entry.kind}" for entry in entries]
    return "\n".join([*rows, f"{'total':<{width}}  {sum(entry.slots for entry in entries):>5}"])
