"""The messages of the reasons that the records of jobs contain."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from provision.model.job import JobRecord
from provision.report.reasons import message

Record = TypeVar("Record", bound=JobRecord)


def with_message(record: Record) -> Record:
    """Return a record with the message of its cause, unless a message was recorded."""
    if record.reason or not record.cause.code:
        return record
    return replace(record, reason=message(record.cause))
