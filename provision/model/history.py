"""Who changed what and how that ended: one apply, as the operator's machine or a node remembers it; who has a lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["Entry", "Holder", "NodeLook", "Unlocked", "local_time"]


@dataclass(frozen=True)
class Entry:
    """One apply."""

    id: str
    started: str
    """When, in UTC: ``2026-11-22T10:03:11Z``."""
    user: str = ""
    host: str = ""
    pid: int = 0
    process: str = ""
    """Start time and boot of its process: they tell it from a later one of the same number."""
    command: str = ""
    status: str = "running"
    """``running``, what the apply said when it ended, ``died`` where it never did, ``unlocked`` where it was ended."""
    ended: str | None = None
    seconds: float | None = None
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of the operator's machine: node -> status, roles, message; empty values until it ended."""
    roles: tuple[str, ...] = ()
    """Of a node: the roles that changed something."""
    notes: tuple[str, ...] = ()
    """Of a node: the steps, in order."""
    message: str = ""
    """Of a node: what failed, or how it came to its end."""
    file: Path | None = field(default=None, repr=False, compare=False)

    @property
    def who(self) -> str:
        """Return the operator and the machine."""
        return f"{self.user}@{self.host}"

    def told(self) -> str:
        """Return it in a few words: ``the apply of 2026-11-22 12:03 by alice on ops1``."""
        return f"the apply of {local_time(self.started)[:16]} by {self.user} on {self.host}"


@dataclass(frozen=True)
class Holder:
    """Who has the lock of a node."""

    id: str
    node: str
    """The name that the holder knows the node by."""
    user: str
    host: str
    pid: int
    command: str
    since: str
    gone: str = ""
    """When the operator's side was lost, where it was."""

    def told(self) -> str:
        """Return who, since when and for what."""
        lost = f"; its operator's side is gone since {local_time(self.gone)}" if self.gone else ""
        who = f"{self.user} on {self.host} (process {self.pid})"
        return f"in use by {who}, since {local_time(self.since)}, for `{self.command}`{lost}"


@dataclass(frozen=True)
class NodeLook:
    """What a node says of its lock."""

    held: bool
    holder: Holder | None = None
    """None although it is held: by something that is none of our programs."""
    working: tuple[str, ...] = ()
    """Processes of Ansible on the node."""
    entries: tuple[Entry, ...] = ()
    """The newest applies, oldest first."""


@dataclass(frozen=True)
class Unlocked:
    """What came of unlocking a node."""

    node: str
    result: str
    """``free`` (there was no lock), ``unlocked``, ``refused``, ``failed`` or ``unreachable``."""
    reason: str
    holder: Holder | None = None
    remedy: str | None = None

    @property
    def ok(self) -> bool:
        """True where no lock is left."""
        return self.result in {"free", "unlocked"}


def local_time(utc: str) -> str:
    """Return a time of the history as the clock on the wall shows it; anything else as it is."""
    try:
        moment = datetime.strptime(utc, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError):
        return utc
