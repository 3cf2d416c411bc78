"""Answers of nodes about their locks and apply history, and the lines of such a history."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from provision.documents.decoding import convert, decode
from provision.documents.text import PrintableLine
from provision.errors import InvalidDocument
from provision.model.history import Entry, Holder

ANSWER_LIMIT = 16 * 1024 * 1024
"""Bytes of an answer; the history has a few hundred records of at most a hundred kilobytes."""
Pid = Annotated[int, Meta(ge=0, le=2**31)]
Lines = Annotated[list[PrintableLine], Meta(max_length=10_000)]


class HolderRecord(Struct):
    """The record of a lock holder about itself."""

    id: PrintableLine
    node: PrintableLine = field(default_factory=PrintableLine)
    user: PrintableLine = field(default_factory=PrintableLine)
    host: PrintableLine = field(default_factory=PrintableLine)
    pid: Pid = 0
    command: PrintableLine = field(default_factory=PrintableLine)
    since: PrintableLine = field(default_factory=PrintableLine)
    gone: PrintableLine = field(default_factory=PrintableLine)

    def holder(self) -> Holder:
        """Return the holder as a model value."""
        words = {name: str(getattr(self, name)) for name in ("id", "node", "user", "host", "command", "since", "gone")}
        return Holder(pid=self.pid, **words)


class EntryRecord(Struct):
    """One apply in the history of the controller or of a node."""

    id: PrintableLine
    started: PrintableLine
    user: PrintableLine = field(default_factory=PrintableLine)
    host: PrintableLine = field(default_factory=PrintableLine)
    pid: Pid = 0
    process: PrintableLine = field(default_factory=PrintableLine)
    command: PrintableLine = field(default_factory=PrintableLine)
    status: PrintableLine = field(default_factory=lambda: PrintableLine("running"))
    ended: PrintableLine | None = None
    seconds: float | None = None
    nodes: dict[PrintableLine, dict[str, Any]] = field(default_factory=dict)
    roles: Lines | None = None
    notes: Lines | None = None
    message: PrintableLine | None = None


class LookAnswer(Struct):
    """The lock holder, the running Ansible processes, and the latest applies."""

    held: bool | None = None
    holder: HolderRecord | None = None
    working: Lines = field(default_factory=list)
    entries: Annotated[list[Any], Meta(max_length=10_000)] = field(default_factory=list)
    failed: PrintableLine = field(default_factory=PrintableLine)
    errno: PrintableLine = field(default_factory=PrintableLine)


class LockAnswer(Struct):
    """The result of acquiring the lock."""

    locked: PrintableLine | None = None
    """Its path, if it was acquired."""
    usual: bool = False
    held: bool = False
    holder: HolderRecord | None = None
    failed: PrintableLine = field(default_factory=PrintableLine)
    errno: PrintableLine = field(default_factory=PrintableLine)


class ReleaseAnswer(Struct):
    """The result of releasing the lock."""

    released: bool = False
    working: Lines = field(default_factory=list)
    trouble: PrintableLine = field(default_factory=PrintableLine)


class UnlockAnswer(Struct):
    """The result of breaking the lock of another holder."""

    unlocked: bool = False
    working: Lines = field(default_factory=list)
    trouble: PrintableLine = field(default_factory=PrintableLine)
    free: bool = False
    strange: bool = False
    other: HolderRecord | None = None
    stuck: Pid | None = None


def entries_of(records: Iterable[Any]) -> tuple[Entry, ...]:
    """Return the applies of valid records; invalid ones, e.g. after a power cut, are skipped."""
    return tuple(entry for entry in map(entry_of, records) if entry is not None)


def entry_of(record: Any, file: Path | None = None) -> Entry | None:
    """Return the apply of a record, or None if the record is invalid."""
    with suppress(InvalidDocument):
        fields = convert(record, EntryRecord, node="", what="record of an apply")
        words = {name: str(getattr(fields, name)) for name in ("id", "started", "user", "host", "process", "command")}
        return Entry(
            **words,
            pid=fields.pid,
            status=str(fields.status),
            ended=str(fields.ended) if fields.ended else None,
            seconds=fields.seconds,
            nodes={str(name): result for name, result in fields.nodes.items()},
            roles=tuple(map(str, fields.roles or ())),
            notes=tuple(map(str, fields.notes or ())),
            message=str(fields.message or ""),
            file=file,
        )
    return None


def merged(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return the records of a history in the order of their first line; later lines of an apply update the first.

    Incomplete lines, e.g. after a power cut, are skipped.
    """
    records: dict[str, dict[str, Any]] = {}
    for line in lines:
        with suppress(InvalidDocument):
            record = decode(line, dict[str, Any], node="", what="line of a history")
            if "id" in record:
                records.setdefault(str(record["id"]), {}).update(record)
    return list(records.values())
