"""Tables of jobs in arena's columns: ``list``, ``top job`` and the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provision.batch.names import trainer
from provision.model.job import JobRecord, JobStatus
from provision.report import layout
from provision.report.grouping import reason_lines
from provision.report.job_words import NOT_APPLICABLE, age, allocated, columns, current_reason, duration, leader
from provision.report.node_names import in_short

_MIN_OWNER_WIDTH = 8
"""Letters of an owner: with names of up to 24 letters `list` fits 80 columns."""
_WAITING = (JobStatus.PENDING, JobStatus.QUEUING)


def newest_first(jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """Return jobs in the order of lists."""
    return sorted(jobs, key=lambda job: (-job.submitted, job.spec.name))


def list_text(jobs: Sequence[JobRecord], now: float) -> str:
    """Return NAME STATUS TRAINER AGE NODE OWNER; NODE is the address of the first instance of an active job."""
    rows = [
        [
            job.spec.name,
            layout.state(str(job.status)),
            trainer(job.spec.kind),
            age(job.submitted, now),
            _node(job),
            job.owner or NOT_APPLICABLE,
        ]
        for job in jobs
    ]
    return "\n".join(columns(_fitting([["NAME", "STATUS", "TRAINER", "AGE", "NODE", "OWNER"], *rows])))


def wide_text(jobs: Sequence[JobRecord], now: float) -> str:
    """Return NAME STATUS TRAINER DURATION GPU(Requested) GPU(Allocated) NODE OWNER.

    Each STOPPING job is followed by the nodes that have not confirmed its end.
    """
    rows = [
        [
            job.spec.name,
            layout.state(str(job.status)),
            trainer(job.spec.kind),
            duration(job, now),
            str(job.spec.total_gpus),
            NOT_APPLICABLE if job.status.over else str(allocated(job)),
            _node(job),
            job.owner or NOT_APPLICABLE,
        ]
        for job in jobs
    ]
    header = ["NAME", "STATUS", "TRAINER", "DURATION", "GPU(Requested)", "GPU(Allocated)", "NODE", "OWNER"]
    left = [f"{job.spec.name}: not confirmed by {in_short(job.unconfirmed)}" for job in jobs if job.unconfirmed]
    return "\n".join([*columns(_fitting([header, *rows])), *([""] if left else []), *left])


def top_text(jobs: Sequence[JobRecord], now: float) -> str:
    """Return requested and allocated GPUs per job, largest requests first, and the totals."""
    shown = sorted(jobs, key=lambda job: (-job.spec.total_gpus, -job.submitted))
    rows = [
        [
            job.spec.name,
            str(job.spec.total_gpus),
            str(allocated(job)),
            layout.state(str(job.status)),
            trainer(job.spec.kind).lower(),
            age(job.submitted, now),
            _node(job),
        ]
        for job in shown
    ]
    header = ["NAME", "GPU(Requests)", "GPU(Allocated)", "STATUS", "TRAINER", "AGE", "NODE"]
    lines = columns([header, *rows])
    lines += ["", "Total Allocated GPUs of Training Job:", str(sum(map(allocated, shown)))]
    lines += ["", "Total Requested GPUs of Training Job:", str(sum(job.spec.total_gpus for job in shown))]
    return "\n".join(lines)


def queue_text(jobs: Sequence[JobRecord], now: float) -> str:
    """Return the waiting jobs in scheduling order, each with its reason."""
    waiting = sorted(
        (job for job in jobs if job.status in _WAITING), key=lambda job: (-job.spec.priority, job.submitted)
    )
    rows = [
        [
            job.spec.name,
            layout.state(str(job.status)),
            str(job.spec.priority),
            age(job.submitted, now),
            str(job.spec.total_gpus),
        ]
        for job in waiting
    ]
    lines = columns([["NAME", "STATUS", "PRIORITY", "AGE", "GPU(Requested)"], *rows])
    for job in waiting:
        lines += ["", f"{job.spec.name}: {current_reason(job, now) or 'no scheduling pass since submission'}"]
    return "\n".join(lines)


def names_text(jobs: Sequence[JobRecord]) -> str:
    """Return the names, one per line."""
    return "\n".join(job.spec.name for job in jobs)


def unreachable_lines(unreachable: Mapping[str, str]) -> list[str]:
    """Return a line for each reason why nodes are unreachable: what they alone know is missing."""
    return reason_lines(unreachable, between=": unreachable: ")


def _fitting(rows: Sequence[list[str]]) -> list[list[str]]:
    """Return the rows with the last column truncated to the remaining width."""
    others = [max(map(layout.length, cells)) for cells in zip(*(row[:-1] for row in rows), strict=True)]
    width_left = max(_MIN_OWNER_WIDTH, layout.width() - sum(others) - 2 * len(others))
    return [[*row[:-1], row[-1] if len(row[-1]) <= width_left else row[-1][: width_left - 3] + "..."] for row in rows]


def _node(job: JobRecord) -> str:
    first = leader(job)
    return first.address or first.node if first and not job.status.over else NOT_APPLICABLE
