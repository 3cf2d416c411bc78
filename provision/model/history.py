"""Who changed what and how that ended: one apply, as the operator's machine or a node remembers it; who has a lock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = [
    "Entry",
    "Holder",
    "NodeLook",
    "Unlocked",
    "as_entries",
    "as_entry",
    "as_holder",
    "local_time",
    "merged",
    "plain",
    "plain_list",
]


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


def merged(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return the records of a history in the order of their first line; later lines of an apply add to the first.

    Half a line, as a power cut leaves it, is passed over.
    """
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            record = json.loads(line)
            found.setdefault(str(record["id"]), {}).update(record)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return list(found.values())


def as_entries(records: Any) -> tuple[Entry, ...]:
    """Read records, oldest first; what is none is passed over."""
    return tuple(entry for entry in map(as_entry, records) if entry) if isinstance(records, list) else ()


def as_entry(record: Mapping[str, Any], file: Path | None = None) -> Entry | None:
    """Read one record; None where it does not say what began when."""
    try:
        return Entry(
            id=str(record["id"]),
            started=plain(record["started"]),
            user=plain(record.get("user")),
            host=plain(record.get("host")),
            pid=int(record.get("pid") or 0),
            process=plain(record.get("process")),
            command=plain(record.get("command")),
            status=plain(record.get("status")) or "running",
            ended=plain(record.get("ended")) or None,
            seconds=None if record.get("seconds") is None else float(record["seconds"]),
            nodes={str(name): dict(value) for name, value in (record.get("nodes") or {}).items()},
            roles=plain_list(record.get("roles")),
            notes=plain_list(record.get("notes")),
            message=plain(record.get("message")),
            file=file,
        )
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
        return None


def as_holder(record: Any) -> Holder | None:
    """Read what the holder of a lock wrote about itself; None where that is nothing of the kind."""
    if not record or not isinstance(record, Mapping):
        return None
    words = {key: plain(record.get(key)) for key in ("id", "node", "user", "host", "command", "since", "gone")}
    pid = record.get("pid")
    return Holder(pid=pid if isinstance(pid, int) else 0, **words)


def local_time(utc: str) -> str:
    """Return a time of the history as the clock on the wall shows it; anything else as it is."""
    try:
        moment = datetime.strptime(utc, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError):
        return utc


def plain(value: Any) -> str:
    """Return text that does nothing to a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in str("" if value is None else value))


def plain_list(values: Any) -> tuple[str, ...]:
    """Return a list's items as such texts; nothing where it is no list: a node may answer anything."""
    return tuple(map(plain, values)) if isinstance(values, list) else ()
