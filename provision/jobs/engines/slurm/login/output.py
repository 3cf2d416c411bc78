"""Lines of output of a job, from files on the login node."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from provision.connectors import Connector
from provision.documents.slurm_login import LoginLogs
from provision.errors import NotFound, UsageError
from provision.jobs.engines.base import LogRequest, WriteLine
from provision.jobs.engines.slurm.login.ask import ask_login
from provision.jobs.engines.slurm.login.records import LoginRecord
from provision.jobs.job_access import instance_of
from provision.model.job import Assignment, Kind
from provision.model.reason import reason
from provision.node.slurm.login import PIECE_BYTES
from provision.report.reasons import error_of

POLL_SECONDS = 1.0
"""Between two requests for new lines."""
FILES_AT_ONCE = 8
"""Files in one answer, each of which has a few MiB."""
LINE_LIMIT = 1024 * 1024
"""Bytes of a line; a longer line is split."""


@dataclass
class _File:
    """The output of one task."""

    instance: str
    task: int
    tail: int
    offset: int = 0
    pending: bytes = field(default=b"", repr=False)
    """The beginning of a line whose end is missing."""

    def lines(self, data: bytes) -> list[bytes]:
        """Return the complete lines."""
        *lines, self.pending = (self.pending + data).split(b"\n")
        if len(self.pending) > LINE_LIMIT:
            lines, self.pending = [*lines, self.pending], b""
        return [line + b"\n" for line in lines]


def write_output(
    connector: Connector, get: Callable[[str], LoginRecord], name: str, request: LogRequest, write: WriteLine
) -> LoginRecord:
    """Write lines of the requested instances; with ``follow`` until the job has ended. Returns the job as it is then.

    Raises:
        UsageError: lines with times are requested, which the files do not have.
        NotFound: the job has no such instance or attempt.
    """
    if request.since or request.timestamps:
        option = "--since" if request.since else "--timestamps"
        raise error_of(UsageError, reason("slurm.login_option", option=option))
    record = get(name)
    attempt = request.attempt or record.attempt
    if attempt > record.attempt:
        raise NotFound(f"{name} has no attempt {attempt}", remedy=f"Its last attempt is {record.attempt}.")
    files = [_File(one.instance, _task(record, one), request.tail) for one in _asked(record, request)]
    while True:
        is_last = record.status.over or not request.follow or record.attempt != attempt
        for first in range(0, len(files), FILES_AT_ONCE):
            _read(connector, record, attempt, files[first : first + FILES_AT_ONCE], write)
        if is_last:
            break
        time.sleep(POLL_SECONDS)
        record = get(record.id)
    for file in files:
        if file.pending:
            write(file.instance, file.pending + b"\n")
    return record


def _asked(record: LoginRecord, request: LogRequest) -> list[Assignment]:
    if request.every:
        with_output = [one for one in record.assignments if record.spec.kind is not Kind.MPI or one.is_leader]
        return with_output or [instance_of(record, "")]
    return [instance_of(record, one) for one in request.instances or ("",)]


def _task(record: LoginRecord, assignment: Assignment) -> int:
    """Return the number of the task with the output of an instance."""
    if record.spec.kind is Kind.MPI and not assignment.is_leader:
        raise error_of(UsageError, reason("slurm.login_mpi_output", instance=assignment.instance))
    return assignment.rank


def _read(connector: Connector, record: LoginRecord, attempt: int, files: Sequence[_File], write: WriteLine) -> None:
    """Write all lines that the files have now."""
    by_task = {file.task: file for file in files}
    while by_task:
        asked = [{"task": one.task, "offset": one.offset, "tail": one.tail} for one in by_task.values()]
        answer = ask_login(
            connector, "logs", LoginLogs, name=record.spec.name, id=record.id, attempt=attempt, files=asked
        )
        for piece in answer.pieces:
            file = by_task.get(piece.task)
            if file is None or len(piece.data) < PIECE_BYTES:  # the file has no more now
                by_task.pop(piece.task, None)
            if file is None or not piece.data:
                continue
            file.offset, file.tail = piece.offset, -1
            for line in file.lines(piece.data):
                write(file.instance, line)
