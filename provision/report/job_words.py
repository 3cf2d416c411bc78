"""Shared formatting of job reports: ages, times, columns and counts."""

from __future__ import annotations

import time
from collections.abc import Sequence

from provision.batch.durations import short
from provision.model.job import Assignment, InstanceRecord, JobRecord, JobStatus
from provision.report import layout
from provision.report.node_names import in_short

NOT_APPLICABLE = "N/A"
_ENDED = {
    JobStatus.SUCCEEDED: "Completed",
    JobStatus.FAILED: "Error",
    JobStatus.STOPPED: "Stopped",
}


def columns(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Format rows in columns separated by two spaces, as kubectl and arena do."""
    widths = [max(map(layout.length, cells)) for cells in zip(*rows, strict=True)]
    return [
        (indent + "  ".join(layout.padded(cell, width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]


def ruled(header: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Format rows below a header with a rule under each of its words."""
    return columns([header, ["-" * len(word) for word in header], *rows], indent)


def stamp(seconds: float) -> str:
    """Return a time as ``2006-01-02 15:04:05`` in the controller's time zone; empty if there is none."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else ""


def age(since: float, now: float) -> str:
    """Return the time since `since` in one unit."""
    return short(now - since) if since else NOT_APPLICABLE


def duration(job: JobRecord, now: float) -> str:
    """Return the run time of a job."""
    return short((job.ended or now) - job.started) if job.started else "0s"


def leader(job: JobRecord) -> Assignment | None:
    """Return the first instance: the launcher or rank 0."""
    return next(
        (assignment for assignment in job.assignments if assignment.is_leader),
        job.assignments[0] if job.assignments else None,
    )


def allocated(job: JobRecord) -> int:
    """Return the number of GPUs allocated to the job."""
    return sum(len(gpus) for gpus in job.allocations.values())


def instance_of(job: JobRecord, assignment: Assignment) -> InstanceRecord:
    """Return the record of an instance; if its node did not report, one derived from the job's state."""
    return job.instances.get(assignment.instance) or InstanceRecord(
        assignment.instance, "Unknown" if assignment.node in job.unreachable else _ENDED.get(job.status, "Pending")
    )


def requested(job: JobRecord, assignment: Assignment) -> int:
    """Return the number of GPUs that an instance requests; a launcher requests none."""
    return 0 if assignment.role == "launcher" else job.spec.gpus


def current_reason(job: JobRecord, now: float = 0.0) -> str:
    """Return why a job waits or failed; empty for one that runs or succeeded.

    With `now`, the reason of a waiting job is prefixed with the time at which it was determined.
    """
    if job.status is JobStatus.QUEUING and not job.reason:
        return f"it is held until: provision queue release {job.spec.name}"
    if job.status in {JobStatus.RUNNING, JobStatus.SUCCEEDED}:
        return ""
    determined = time.localtime(job.reason_time)
    form = "%H:%M" if determined[:3] == time.localtime(now)[:3] else "%Y-%m-%d %H:%M"
    return f"as of {time.strftime(form, determined)}: {job.reason}" if now and job.reason_time else job.reason


def simulated_note(names: Sequence[str]) -> list[str]:
    """Return a note about simulated GPUs."""
    return ["", f"SIMULATED on {in_short(names)}: components of the lab, no real GPUs."] if names else []
