"""Jobs of a login node: their records joined with what Slurm reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provision.batch.ranks import Place, assignments_of
from provision.batch.slurm.states import ACTIVE, WAITING, SlurmJob, all_our_jobs, waiting_reason
from provision.documents.slurm_login import LoginJob, LoginReport
from provision.model.job import Assignment, InstanceRecord, JobEvent, JobRecord, JobStatus, Kind
from provision.model.reason import NO_REASON, Reason, reason
from provision.report.reasons import message

_FIELDS = 3
_SIGNALLED = 128
_ENDED = {JobStatus.SUCCEEDED: "Completed", JobStatus.FAILED: "Error", JobStatus.STOPPED: "Stopped"}


@dataclass(frozen=True)
class LoginRecord(JobRecord):
    """A job of an ordinary user."""

    number: int = 0
    """Its number in Slurm."""
    folder: str = ""
    """The folder of its record and output on the login node."""

    @property
    def engine_details(self) -> Mapping[str, Any]:
        """The number in Slurm, and the folder of the record and the output."""
        return {"slurmJob": self.number, "folder": self.folder}


@dataclass(frozen=True)
class _End:
    """How an attempt ended."""

    status: JobStatus
    cause: Reason = NO_REASON
    exit_code: int | None = None


def records_of(report: LoginReport) -> list[LoginRecord]:
    """Return the jobs of an account.

    Raises:
        InvalidDocument: the output of squeue is not valid.
    """
    jobs: dict[str, list[SlurmJob]] = {}
    for one in all_our_jobs(report.queue, report.user):
        jobs.setdefault(one.id, []).append(one)
    ends = _accounted(report.accounting)
    return [_record(job, _current(job, jobs.get(job.id, ())), ends, report.home) for job in report.jobs]


def _current(job: LoginJob, jobs: Iterable[SlurmJob]) -> SlurmJob | None:
    """Return the job in Slurm of the current attempt."""
    own = [one for one in jobs if one.number not in job.earlier and (not job.number or one.number == job.number)]
    return max(own, key=lambda one: one.number, default=None)


def _accounted(text: str) -> dict[int, tuple[str, int]]:
    """Return number -> state and exit code, from the lines of sacct; the last line of a job counts."""
    ends = {}
    for line in text.splitlines():
        words = line.split("|")
        if len(words) == _FIELDS and words[0].isdecimal() and words[1]:
            code, _, signal = words[2].partition(":")
            status = int(code) if code.isdecimal() else 1
            is_signal = not status and signal.isdecimal() and int(signal)
            ends[int(words[0])] = (words[1].split()[0], _SIGNALLED + int(signal) if is_signal else status)
    return ends


def _record(job: LoginJob, slurm: SlurmJob | None, ends: Mapping[int, tuple[str, int]], home: str) -> LoginRecord:
    number = job.number or (slurm.number if slurm else 0)
    nodes = tuple(job.nodes) or (slurm.nodes if slurm and slurm.state not in WAITING else ())
    assignments = assignments_on(job, nodes)
    status, cause, code = _status(job, slurm, ends)
    began = job.started or (slurm.started if slurm and slurm.state not in WAITING else 0.0)
    ended = (job.ended or (slurm.ended if slurm else 0.0)) if status.over else 0.0
    runs = bool(assignments) or status.over
    failed = _failed(job, assignments) if status is JobStatus.FAILED else None
    record = LoginRecord(
        job.spec, job.id, job.owner, job.submitted, status, message(cause), cause,
        attempt=job.attempt if runs else max(job.attempt - 1, 0), assignments=assignments,
        instances={
            one.instance: _instance(one, status, began, ended, code if one is failed else None) for one in assignments
        },
        started=began, ended=ended, exit_code=code, first_failure=failed.instance if failed else "",
        nodes=tuple(dict.fromkeys(nodes)), events=_events(job, number), number=number,
        folder=f"{home}/.provision/slurm/{job.name}",
    )  # fmt: skip
    return replace(record, first_rank=failed.rank) if failed else record


def _failed(job: LoginJob, assignments: Sequence[Assignment]) -> Assignment | None:
    """Return the instance that failed first: the leader if it is not known, and in mpi jobs, which have one output."""
    rank = 0 if job.spec.kind is Kind.MPI else max(job.task, 0)
    return next((one for one in assignments if one.rank == rank), None)


def assignments_on(job: LoginJob, nodes: Sequence[str]) -> tuple[Assignment, ...]:
    """Return the instances of an attempt: worker N is on the node N of Slurm. Empty before its start."""
    if len(nodes) < job.spec.workers:
        return ()
    made = assignments_of(job.spec, [Place(node, "") for node in nodes[: job.spec.workers]])
    if job.spec.kind is not Kind.MPI:
        return made
    return (replace(made[0], instance=f"{job.name}-launcher-{job.id[:5]}"), *made[1:])  # the name is always the same


def _instance(
    assignment: Assignment, status: JobStatus, began: float, ended: float, code: int | None
) -> InstanceRecord:
    word = _ENDED.get(status, "Running" if began else "Pending")
    return InstanceRecord(assignment.instance, word, code, started=began, ended=ended)


def _events(job: LoginJob, number: int) -> tuple[JobEvent, ...]:
    events = [JobEvent(job.submitted, "submit", "Normal", f"submitted by {job.owner}")]
    if job.started:
        nodes = ", ".join(job.nodes)
        events.append(
            JobEvent(job.started, "slurm", "Normal", f"attempt {job.attempt} began as job {number} on {nodes}")
        )
    if job.ended:
        kind = "Warning" if job.exit_code else "Normal"
        events.append(JobEvent(job.ended, "slurm", kind, f"job {number} ended with exit status {job.exit_code}"))
    return tuple(events)


def _status(
    job: LoginJob, slurm: SlurmJob | None, ends: Mapping[int, tuple[str, int]]
) -> tuple[JobStatus, Reason, int | None]:
    if slurm is not None and slurm.state in WAITING:
        status = JobStatus.STOPPING if job.stopped else JobStatus.QUEUING if slurm.is_held else JobStatus.PENDING
        return status, NO_REASON if job.stopped else waiting_reason(slurm), None
    if slurm is not None and slurm.state in ACTIVE:
        return JobStatus.STOPPING if job.stopped else JobStatus.RUNNING, NO_REASON, None
    end = _end(job, slurm.state if slurm is not None else "", ends.get(job.number))
    return end.status, end.cause, end.exit_code


def _end(job: LoginJob, state: str, accounted: tuple[str, int] | None) -> _End:
    """Return how an attempt ended: its own record of the exit status counts, then Slurm's state."""
    if not state and accounted is not None:
        state = accounted[0]
    if job.stopped:
        return _End(JobStatus.STOPPED, exit_code=job.exit_code)
    if state == "CANCELLED":
        return _End(JobStatus.STOPPED, reason("slurm.cancelled"), job.exit_code)
    if job.exit_code == 0 or (job.exit_code is None and state == "COMPLETED"):
        return _End(JobStatus.SUCCEEDED, exit_code=0)
    code = job.exit_code if job.exit_code is not None else accounted[1] if accounted is not None else None
    return _End(JobStatus.FAILED, _failure(job, state, code), code)


def _failure(job: LoginJob, state: str, code: int | None) -> Reason:
    """Return why an attempt failed."""
    if state not in {"", "FAILED", "COMPLETED"} and state not in ACTIVE:  # such as TIMEOUT and OUT_OF_MEMORY
        return reason("slurm.ended", state=state, cause=job.last)
    if code is not None:
        return reason("slurm.login_failed", code=code, line=job.last)
    if state:
        return reason("slurm.ended", state=state, cause="")
    return reason("slurm.login_forgotten", job=job.number) if job.number else reason("slurm.not_submitted")
