"""The audit records of a node, as journald prints them (``journalctl -o json``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from provision.documents.decoding import decode
from provision.errors import InvalidDocument

LINE_LIMIT = 64 * 1024
"""Bytes of one journal entry; a longer one is not a record of ours."""

Text = Annotated[str, msgspec.Meta(max_length=256)]
Time = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One action. The node's programs write it (``node/audit.py``); unknown keys are ignored."""

    time: Time
    action: Text
    caller: Text
    """A name of the inventory where `agent` is true, else the ``user@host`` that the caller claimed."""
    result: Text = "ok"
    address: Text = ""
    """The source of the caller's SSH session."""
    agent: bool = False
    """Whether the job agent identified the caller by the SSH key."""
    job: Text = ""
    id: Text = ""
    """The ID of the job."""
    owner: Text = ""
    """The owner of the job, as its submitter claimed it."""
    instance: Text = ""
    request: Text = ""
    reason: Text = ""
    """Why a node was drained."""
    command: Text = ""
    secrets: Annotated[tuple[Text, ...], msgspec.Meta(max_length=64)] = ()
    """Names; values are never recorded."""


class AuditTrail(msgspec.Struct, frozen=True):
    """The audit records in a node's journal."""

    records: tuple[AuditRecord, ...]
    """Oldest first."""
    invalid: int = 0
    """Entries that are not valid records."""


class _Entry(msgspec.Struct):
    """One entry of the journal; journald prints a message that is not text as a list of numbers."""

    message: str | list[int] | None = msgspec.field(name="MESSAGE", default=None)


def audit_trail(text: str, node: str) -> AuditTrail:
    """Return the records in the output of ``journalctl -o json`` and the number of invalid entries."""
    records: list[AuditRecord] = []
    invalid = 0
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            entry = decode(line, _Entry, node=node, what="journal entry", limit=LINE_LIMIT)
            message = entry.message if isinstance(entry.message, str) else ""
            records.append(decode(message, AuditRecord, node=node, what="audit record", limit=LINE_LIMIT))
        except InvalidDocument:
            invalid += 1
    return AuditTrail(tuple(records), invalid)
