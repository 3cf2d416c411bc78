"""History of applies, as the controller or a node records it, and holders of locks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One apply."""

    id: str
    started: str
    """Start time in UTC: ``2026-11-22T10:03:11Z``."""
    user: str = ""
    host: str = ""
    pid: int = 0
    process: str = ""
    """Start time and boot id of the process, which distinguish it from a later process with the same PID."""
    command: str = ""
    status: str = "running"
    """``running``, the result of the apply, ``died`` if it ended without one, or ``unlocked`` if it was killed."""
    ended: str | None = None
    seconds: float | None = None
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """In records of the controller: node -> status, roles, message; empty values until the apply has ended."""
    roles: tuple[str, ...] = ()
    """In records of a node: the roles that changed something."""
    notes: tuple[str, ...] = ()
    """In records of a node: the steps, in order."""
    message: str = ""
    """In records of a node: what failed, or how the apply ended."""
    file: Path | None = field(default=None, repr=False, compare=False)

    @property
    def who(self) -> str:
        """Return the operator and the controller: ``alice@ops1``."""
        return f"{self.user}@{self.host}"

    def describe(self) -> str:
        """Return a short description: ``the apply of 2026-11-22 12:03 by alice on ops1``."""
        return f"the apply of {local_time(self.started)[:16]} by {self.user} on {self.host}"


@dataclass(frozen=True)
class Holder:
    """Holder of the lock of a node."""

    id: str
    node: str
    """Name of the node in the holder's inventory."""
    user: str
    host: str
    pid: int
    command: str
    since: str
    gone: str = ""
    """Time at which the connection to the controller was lost, if it was."""

    def describe(self) -> str:
        """Return the holder's user, host, process, start time and command."""
        lost = f"; the connection to its controller is lost since {local_time(self.gone)}" if self.gone else ""
        who = f"{self.user} on {self.host} (process {self.pid})"
        return f"in use by {who}, since {local_time(self.since)}, for `{self.command}`{lost}"


@dataclass(frozen=True)
class NodeLockState:
    """State of the lock of a node, as the node reports it."""

    held: bool
    holder: Holder | None = None
    """None although the lock is held: another program holds it."""
    working: tuple[str, ...] = ()
    """Processes of Ansible on the node."""
    entries: tuple[Entry, ...] = ()
    """The newest applies, oldest first."""


@dataclass(frozen=True)
class Unlocked:
    """Result of unlocking a node."""

    node: str
    result: str
    """``free`` (there was no lock), ``unlocked``, ``refused``, ``failed`` or ``unreachable``."""
    reason: str
    holder: Holder | None = None
    remedy: str | None = None

    @property
    def ok(self) -> bool:
        """True if the node has no lock."""
        return self.result in {"free", "unlocked"}


def local_time(utc: str) -> str:
    """Return a UTC time of the history in local time; other texts are returned unchanged."""
    try:
        moment = datetime.strptime(utc, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError):
        return utc
