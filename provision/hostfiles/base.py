"""What a host file says, whatever the launcher that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["HostEntry", "Render"]


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


class Render(Protocol):
    """Writes the entries in one launcher's dialect; the text ends with a newline unless there are no entries."""

    def __call__(self, entries: Sequence[HostEntry]) -> str:
        """Return the text of the file."""
