"""Follow a job until it ends: output on stdout, status changes on stderr."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from provision.cli import log_file
from provision.cli.levels import info, warn
from provision.errors import Interrupted, NodeUnreachable

if TYPE_CHECKING:
    from provision.jobs.engines.base import JobEngine, LogRequest
    from provision.model.job import JobRecord

SILENT_SECONDS = 120.0
"""Seconds to wait for the end of a job whose output has ended while the node of rank 0 does not answer."""
_HARMFUL = re.compile(rb"\x1b(?!\[[0-9;]{0,32}m)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\xc2[\x80-\x9f]")
"""Control characters except colors and the carriage returns of progress bars; others could inject terminal input."""


def for_terminal(line: bytes) -> bytes:
    """Return a line of a job's output without terminal control characters."""
    return _HARMFUL.sub(b"?", line)


def writer(*, named: bool) -> Callable[[str, bytes], None]:
    """Return a function that prints lines of an instance on stdout, with its name if `named`."""
    shown = for_terminal if sys.stdout.isatty() else bytes

    def write(instance: str, line: bytes) -> None:
        head = f"[{instance}] ".encode() if named else b""
        sys.stdout.buffer.write(head + shown(line))
        sys.stdout.buffer.flush()
        log_file.record_raw("stdout", head + line)

    sys.stdout.flush()
    return write


@contextmanager
def leaving(name: str) -> Iterator[None]:
    """On Ctrl-C, report that the job continues.

    Raises:
        Interrupted: Ctrl-C was pressed.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; {name} continues",
            remedy=f"To show it again: provision logs -f {name}; to stop it: provision stop {name}",
        ) from None


def follow(engine: JobEngine, job: JobRecord, request: LogRequest | None = None) -> JobRecord:
    """Wait until a job starts, and show its output and its result."""
    from provision.jobs.engines.base import LogRequest
    from provision.model.job import JobStatus
    from provision.workflow.job_watch import wait_for

    name = job.spec.name
    wanted = request or LogRequest(follow=True)
    with leaving(name):
        if not job.status.over and not _is_assigned(job):
            options: Any = {"report": tell, "push": pusher(engine), "enough": _is_assigned, "known": job}
            job = wait_for(lambda: engine.get(name), JobStatus.RUNNING, **options)
        job = engine.logs(job, wanted, writer(named=wanted.every or len(wanted.instances) > 1))
        if not job.status.over:
            silent = _silent_for(SILENT_SECONDS)
            job = wait_for(lambda: engine.get(name), JobStatus.SUCCEEDED, push=pusher(engine), enough=silent)
    if not job.status.over:
        raise NodeUnreachable(
            f"the output of {name} has ended, and how the job ended is not known: no answer from "
            f"{', '.join(job.unreachable)}",
            remedy=f"Repair the node, then run: provision get {name}",
        )
    report_end(job)
    return job


def _silent_for(seconds: float) -> Callable[[JobRecord], bool]:
    """Return a function that tests whether the node of a job's rank 0 has not answered for this time."""
    since: list[float] = []

    def is_silent(job: JobRecord) -> bool:
        if not any(assignment.is_leader and assignment.node in job.unreachable for assignment in job.assignments):
            since.clear()
            return False
        since.append(time.monotonic())
        return since[-1] - since[0] > seconds

    return is_silent


def wait_to_the_end(engine: JobEngine, name: str, *, timeout: float = 0.0) -> JobRecord:
    """Wait until a job has ended, and report its status changes."""
    from provision.model.job import JobStatus
    from provision.workflow.job_watch import wait_for

    with leaving(name):
        job = wait_for(lambda: engine.get(name), JobStatus.SUCCEEDED, timeout=timeout, report=tell, push=pusher(engine))
    report_end(job)
    return job


def _is_assigned(job: JobRecord) -> bool:
    """Return whether nodes have this attempt, so that its output can be followed from the first line."""
    from provision.model.job import JobStatus

    coming = job.status is JobStatus.PENDING and bool(job.assignments) and not job.retrying and not job.starting
    return coming or job.status is JobStatus.RUNNING or (job.status is JobStatus.STOPPING and bool(job.assignments))


def pusher(engine: JobEngine) -> Callable[[], bool]:
    """Return a function that starts waiting jobs, unless another command does it at the same time.

    It returns False for an engine that starts them itself.
    """
    from provision.errors import LockedError
    from provision.jobs.engines.base import Capability

    def push() -> bool:
        if Capability.OWN_QUEUE in engine.capabilities:
            return False
        with suppress(LockedError), engine.maintenance() as maintenance:
            maintenance.run(info)
        return True

    return push


def tell(job: JobRecord) -> None:
    """Report the status of a job; `report_end` reports its end."""
    if not job.status.over:
        info(f"{job.spec.name} is {job.status}" + (f": {job.reason}" if job.reason else ""))


def report_end(job: JobRecord) -> None:
    """Report how a job ended, and for a failed one the first failed rank with its last lines."""
    from provision.model.job import JobStatus
    from provision.report.job_detail import failure_lines
    from provision.report.node_names import in_short

    why = f": {job.reason}" if job.reason and job.status is not JobStatus.SUCCEEDED else ""
    (info if job.status is JobStatus.SUCCEEDED else warn)(f"{job.spec.name} {job.status}{why}")
    for line in failure_lines(job)[1:]:
        warn(line)
    if job.unconfirmed:
        warn(f"{job.spec.name} is being deleted: {in_short(job.unconfirmed)} has not confirmed; the name stays taken")
