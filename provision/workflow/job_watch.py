"""Batch jobs above any engine: what is waited for, which are meant, and what a job's end means for a script."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from provision.errors import TimedOut, UsageError
from provision.model.job import JobRecord, JobStatus

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.25, 5.0
_PAUSE_AFTER_PASS = 1.0
"""At least so long after a scheduling pass, which connects to all nodes."""
_HIGHEST_CODE = 255
_NEVER_PRUNED = "jobs that wait or run are never pruned"


def exit_code(job: JobRecord) -> int:
    """Return 0 for a job that succeeded, else the code of the instance that failed first, from 1 to 255.

    It is 128 + n for an instance that signal n ended, as in a shell: 137 for SIGKILL.
    """
    if job.status is JobStatus.SUCCEEDED:
        return 0
    first = job.instances.get(job.first_failure)
    code = first.exit_code if first and first.exit_code else job.exit_code
    return min(max(code or 1, 1), _HIGHEST_CODE)


def wait_for(
    get_job: Callable[[], JobRecord],
    wanted: JobStatus,
    *,
    timeout: float = 0.0,
    report: Callable[[JobRecord], None] = lambda _job: None,
    enough: Callable[[JobRecord], bool] = lambda _job: False,
    push: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
    known: JobRecord | None = None,
) -> JobRecord:
    """Wait until the job is in the desired state, or has ended.

    Args:
        get_job: returns the current job.
        wanted: the desired states; an ended job is never RUNNING again.
        timeout: seconds; 0 for no limit.
        report: is called for each new state, and for each new reason of a pending job.
        enough: returns whether to stop waiting although the job is not in the desired state.
        push: runs a scheduling pass and returns True, if there is one; called repeatedly while the job is pending.
        sleep: waits.
        known: the job, if it has just been read.

    Raises:
        TimedOut: it did not come in time.
    """
    started, last, pause = time.monotonic(), None, _SHORTEST_PAUSE
    while True:
        job, known = known or get_job(), None
        passed = _in_line(job) and not enough(job) and push()
        if passed:
            job = get_job()
        now = (job.status, job.reason if _in_line(job) else "")
        if now != last:
            report(job)
            pause = pause if last is not None and last[0] == job.status else _SHORTEST_PAUSE
            last = now
        if job.status == wanted or job.status.over or enough(job):
            return job
        left = started + timeout - time.monotonic() if timeout else pause
        if left <= 0:
            why = f": {job.reason}" if job.reason else ""
            raise TimedOut(
                f"{job.spec.name} is {job.status} after {timeout:g} s, not {wanted}{why}",
                remedy=f"`provision get {job.spec.name} -e` says what happened; it goes on by itself.",
            )
        sleep(min(max(pause, _PAUSE_AFTER_PASS) if passed else pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def _in_line(job: JobRecord) -> bool:
    return (job.status is JobStatus.PENDING and not job.assignments) or job.retrying


def chosen_jobs(
    jobs: Sequence[JobRecord],
    *,
    kind: str = "",
    labels: dict[str, str] | None = None,
    user: str = "",
    status: str = "",
) -> tuple[JobRecord, ...]:
    """Return the jobs that match all filters.

    Raises:
        UsageError: there is no such type or status.
    """
    from provision.batch.names import kind_of
    from provision.model.people import is_one_of

    if status and status.upper() not in JobStatus.__members__:
        raise UsageError(
            f"--status {status}: unknown status",
            remedy=f"Statuses are {', '.join(word.lower() for word in JobStatus.__members__)}.",
        )

    wanted = kind_of(kind) if kind else None
    if kind and wanted is None:
        raise UsageError(f"--type {kind}: there is no such type", remedy="Types are mpi, pytorch and run.")
    return tuple(
        job
        for job in jobs
        if wanted in {None, job.spec.kind}
        and status.upper() in {"", job.status}
        and is_one_of(job.owner, user)
        and all(job.spec.labels.get(name) == value for name, value in (labels or {}).items())
    )


def aged_out(
    jobs: Sequence[JobRecord], since: float, now: float, statuses: Sequence[str] = ()
) -> tuple[JobRecord, ...]:
    """Return the jobs that have been over for more than `since` seconds; never one that waits or runs.

    Raises:
        UsageError: a status that is none, or that is not an end.
    """
    over = {str(status): status for status in JobStatus if status.over}
    for word in statuses:
        if word.upper() not in over:
            raise UsageError(
                f"--status {word}: {_NEVER_PRUNED}"
                if word.upper() in JobStatus.__members__
                else f"--status {word}: unknown status",
                remedy=f"Give one or more of {', '.join(over).lower()}.",
            )
    wanted = {over[word.upper()] for word in statuses} or set(over.values())
    return tuple(job for job in jobs if job.status in wanted and now - (job.ended or job.submitted) > since)
