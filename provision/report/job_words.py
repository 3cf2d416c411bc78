"""Words that all reports of batch jobs share: ages, times, columns, and what is counted of a job."""

from __future__ import annotations

import time
from collections.abc import Sequence

from provision.batch.durations import short
from provision.model.job import InstanceRecord, JobRecord, JobStatus, Seat
from provision.report import layout
from provision.report.node_names import in_short

__all__ = [
    "NOT_APPLICABLE",
    "age",
    "allocated",
    "chief",
    "columns",
    "duration",
    "instance_of",
    "requested",
    "ruled",
    "simulated_note",
    "stamp",
    "told_reason",
]

NOT_APPLICABLE = "N/A"
_ENDED = {
    JobStatus.SUCCEEDED: "Completed",
    JobStatus.FAILED: "Error",
    JobStatus.STOPPED: "Stopped",
}


def columns(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Lay rows out in columns, two spaces between them, as kubectl and arena do."""
    widths = [max(map(layout.length, cells)) for cells in zip(*rows, strict=True)]
    return [
        (indent + "  ".join(layout.padded(cell, width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]


def ruled(header: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Lay rows out below a header with a rule under each of its words."""
    return columns([header, ["-" * len(word) for word in header], *rows], indent)


def stamp(seconds: float) -> str:
    """Return a time as ``2006-01-02 15:04:05`` of this machine's zone; nothing for never."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else ""


def age(since: float, now: float) -> str:
    """Return how long ago that was, in one unit."""
    return short(now - since) if since else NOT_APPLICABLE


def duration(job: JobRecord, now: float) -> str:
    """Return how long the job has run, or ran."""
    return short((job.ended or now) - job.started) if job.started else "0s"


def chief(job: JobRecord) -> Seat | None:
    """Return the first instance's seat: the launcher's, or rank 0's."""
    return next((seat for seat in job.seats if seat.chief), job.seats[0] if job.seats else None)


def allocated(job: JobRecord) -> int:
    """Return how many GPUs are held for it now."""
    return sum(len(held) for held in job.leases.values())


def instance_of(job: JobRecord, seat: Seat) -> InstanceRecord:
    """Return what is known of an instance; where its node said nothing, what the job's own state tells."""
    return job.instances.get(seat.instance) or InstanceRecord(
        seat.instance, "Unknown" if seat.node in job.unreachable else _ENDED.get(job.status, "Pending")
    )


def requested(job: JobRecord, seat: Seat) -> int:
    """Return how many GPUs an instance asks for; a launcher asks for none."""
    return 0 if seat.role == "launcher" else job.spec.gpus


def told_reason(job: JobRecord, now: float = 0.0) -> str:
    """Return why a job waits or failed; nothing for one that runs or succeeded.

    With `now`, of one that waits in line, behind the time at which that was last seen.
    """
    if job.status is JobStatus.QUEUING and not job.reason:
        return f"it is held until: provision queue release {job.spec.name}"
    if job.status in {JobStatus.RUNNING, JobStatus.SUCCEEDED}:
        return ""
    seen = time.localtime(job.reason_time)
    form = "%H:%M" if seen[:3] == time.localtime(now)[:3] else "%Y-%m-%d %H:%M"
    return f"as of {time.strftime(form, seen)}: {job.reason}" if now and job.reason_time else job.reason


def simulated_note(names: Sequence[str]) -> list[str]:
    """Return the lines that say where GPUs are none."""
    return ["", f"SIMULATED on {in_short(names)}: stand-ins of the lab, no real GPUs."] if names else []
