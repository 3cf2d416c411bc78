"""Taking over the jobs that wait in the queue of the engine `direct`.

Both engines use the records of the queue host. An entry is marked as one of Slurm before Slurm gets its job: from then
on the engine `direct` does not start it. If the command ends in between, the mark stays, and the next command submits
the job, or records the number of the job that Slurm already has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.batch.direct_record import DirectRecord
from provision.batch.records import Report, records
from provision.documents.jobs import QueueEntry, ReportAnswer, recorded_reason
from provision.errors import ConnectionFailed, NodeError, NodeUnreachable, NotFound, ProvisionError, UsageError
from provision.jobs.engines.base import MovedJob, TakeOver, WaitingJob
from provision.jobs.engines.slurm.joining import MOVING
from provision.model.job import JobRecord, JobStatus
from provision.model.reason import NO_REASON, reason
from provision.report.job_reasons import with_message
from provision.report.reasons import error_of, message

Say = Callable[[str], None]
_WAITING = frozenset({"pending", "held"})


@dataclass(frozen=True)
class QueuedJob:
    """A job that waits in the queue of the engine `direct`, or whose move is not completed."""

    record: DirectRecord
    entry: QueueEntry

    @property
    def is_held(self) -> bool:
        """Whether it waits for its release."""
        return self.entry.state == "held"

    @property
    def attempt(self) -> int:
        """The number of its next attempt."""
        return max(self.record.attempt, self.entry.attempt) + 1

    def marking(self, engine: str) -> dict[str, Any]:
        """Return the request ``queue`` that marks it as a job of Slurm, with the state of a job that waits."""
        queue = {"engine": engine, **recorded_reason(reason(MOVING), message(reason(MOVING)))}
        if self.entry.state == "started":  # its last attempt has failed, and the next one waits
            excluded = sorted({*self.entry.excluded, *self.record.failed_nodes})
            failures = self.entry.failures + 1
            queue |= {"state": "pending", "attempt": self.record.attempt, "failures": failures, "excluded": excluded}
        only = {"if_state": [self.entry.state], "if_attempt": self.entry.attempt}
        return {**self._change(queue), **only}

    def unmarking(self) -> dict[str, Any]:
        """Return the request ``queue`` that gives a marked job back to the engine `direct`."""
        return {**self._change({"engine": "direct", **recorded_reason(NO_REASON, "")}), "if_state": sorted(_WAITING)}

    def _change(self, queue: Mapping[str, Any]) -> dict[str, Any]:
        only = {"if_id": self.record.id, "if_engine_job": [0]}
        return {"name": self.record.spec.name, "queue": dict(queue), "merge": True, **only}


@dataclass(frozen=True)
class DirectQueue:
    """The jobs of the engine `direct` that have not ended."""

    waiting: Sequence[QueuedJob]
    """In the order in which they are submitted to Slurm."""
    elsewhere: Sequence[WaitingJob]
    """Jobs that another node than the queue host has in its queue."""
    unfinished: Sequence[JobRecord]
    """Jobs that it has started."""
    known: Mapping[str, JobRecord]
    """All jobs by name."""
    in_slurm: frozenset[str]
    """Names of the jobs of Slurm."""


def direct_queue(
    jobs: Iterable[JobRecord], answers: Mapping[str, ReportAnswer | ProvisionError], head: str
) -> DirectQueue:
    """Return the jobs of the engine `direct`.

    Args:
        jobs: all jobs.
        answers: the reports of all nodes, with the entries as Slurm has them.
        head: the queue host.

    Raises:
        ProvisionError: the queue host did not answer.
    """
    of_head = answers[head]
    if isinstance(of_head, ProvisionError):
        raise of_head
    entries = {job.id: job.queue for job in Report.of(head, of_head).jobs if job.queue.state}
    waiting, unfinished, in_slurm = list[QueuedJob](), list[JobRecord](), set[str]()
    known: dict[str, JobRecord] = {}
    for record in jobs:
        entry = entries.get(record.id)
        if entry is None or record.name_reused or not isinstance(record, DirectRecord):
            continue
        known[record.spec.name] = record
        if record.status.over:
            continue
        if _waits(record, entry):
            waiting.append(QueuedJob(record, entry))
        elif entry.starting_engine == "direct":
            unfinished.append(record)
        else:
            in_slurm.add(record.spec.name)
    elsewhere = list(_elsewhere(answers, head, entries))
    return DirectQueue(_in_submission_order(waiting), elsewhere, unfinished, known, frozenset(in_slurm))


def _waits(record: DirectRecord, entry: QueueEntry) -> bool:
    """Return whether the engine `direct` would start a job, or whether a move to Slurm is not completed."""
    if entry.starting_engine == "direct":
        return (entry.state in _WAITING and record.status in {JobStatus.PENDING, JobStatus.QUEUING}) or record.retrying
    return entry.state in _WAITING and entry.code == MOVING and not entry.engine_job


def _elsewhere(
    answers: Mapping[str, ReportAnswer | ProvisionError], head: str, entries: Mapping[str, QueueEntry]
) -> Iterable[WaitingJob]:
    """Yield the waiting jobs of nodes that were the queue host before."""
    for name, answer in answers.items():
        if name == head or isinstance(answer, ProvisionError):
            continue
        report = Report.of(name, answer)
        waiting = {job.id for job in report.jobs if job.queue.state in _WAITING and job.id not in entries}
        for record in records([report], {}, name).values() if waiting else ():
            if record.id in waiting:
                why = reason("slurm.other_queue_host", node_name=name, head=head)
                yield WaitingJob(with_message(record), error_of(UsageError, why))


def _in_submission_order(waiting: Iterable[QueuedJob]) -> list[QueuedJob]:
    """Return jobs in the order of priority, submission and name, but each one after those that it depends on."""
    by_name = {job.record.spec.name: job for job in waiting}
    ordered: dict[str, QueuedJob] = {}
    begun: set[str] = set()

    def add(name: str) -> None:
        if name not in by_name or name in begun:
            return
        begun.add(name)
        for other in by_name[name].record.spec.depends:
            add(other)
        ordered[name] = by_name[name]

    for job in sorted(by_name.values(), key=_position):
        add(job.record.spec.name)
    return list(ordered.values())


def _position(job: QueuedJob) -> tuple[int, float, str]:
    spec = job.record.spec
    return -spec.priority, job.record.submitted, spec.name


def move_all(queue: DirectQueue, move: Callable[[QueuedJob], int], say: Say) -> TakeOver:
    """Move the waiting jobs one by one; a refused job does not affect the others, except those that depend on it.

    Args:
        queue: the jobs of the engine `direct`.
        move: moves one job and returns its number in Slurm.
        say: takes lines of progress.
    """
    moved: list[MovedJob] = []
    remaining = list(queue.elsewhere)
    in_slurm = set(queue.in_slurm)
    lost: ProvisionError | None = None
    for job in queue.waiting:
        name = job.record.spec.name
        try:
            if lost is not None:
                raise lost
            _check_dependencies(job.record, queue.known, in_slurm)
            number = move(job)
        except NotFound:
            say(f"{name} was deleted meanwhile")
        except (ConnectionFailed, NodeUnreachable) as error:
            lost = error
            remaining.append(WaitingJob(job.record, error))
        except ProvisionError as error:
            remaining.append(WaitingJob(job.record, error))
        else:
            in_slurm.add(name)
            moved.append(MovedJob(job.record, number))
            if number:
                say(f"{name} is job {number} in Slurm ({len(moved)} of {len(queue.waiting)})")
    return TakeOver(tuple(moved), tuple(remaining), tuple(queue.unfinished))


def _check_dependencies(record: JobRecord, known: Mapping[str, JobRecord], in_slurm: Iterable[str]) -> None:
    """Refuse a job that depends on one that Slurm does not have: Slurm could not wait for it.

    Raises:
        UsageError: a job that it depends on does not exist, or has not succeeded.
        NodeError: a job that it depends on has not finished.
    """
    for name in record.spec.depends:
        other = known.get(name)
        if other is None:
            raise error_of(UsageError, reason("job.dependency_missing", job=name))
        if other.status is JobStatus.SUCCEEDED or name in in_slurm:
            continue
        if other.status.over:
            raise error_of(UsageError, reason("job.dependency_failed", job=name, status=str(other.status)))
        raise error_of(NodeError, reason("slurm.dependency_of_direct", job=name))
