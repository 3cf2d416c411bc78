"""Order of the waiting jobs, dependencies, and the backfill policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from provision.model.job import JobRecord, JobStatus
from provision.model.reason import Reason, reason

BACKFILL_LIMIT = 16
"""The number of later jobs that may start before an earlier one with insufficient resources."""


def in_order(records: Iterable[JobRecord]) -> list[JobRecord]:
    """Return the waiting jobs in the order of priority, time of submission and name."""
    waiting = [record for record in records if record.status is JobStatus.PENDING]
    return sorted(waiting, key=lambda record: (-record.spec.priority, record.submitted, record.spec.name))


def cannot_start(record: JobRecord, known: Callable[[str], JobRecord | None]) -> Reason | None:
    """Return why a job will never start: a dependency did not succeed."""
    for name in record.spec.depends:
        other = known(name)
        if other is not None and other.status in {JobStatus.FAILED, JobStatus.STOPPED}:
            return reason("job.dependency_failed", job=name, status=str(other.status))
    return None


def waiting_for(record: JobRecord, known: Callable[[str], JobRecord | None]) -> Reason | None:
    """Return why a job must not start even with sufficient resources: it is held, or a dependency is unfinished."""
    if record.spec.hold and record.status is JobStatus.QUEUING:
        return reason("job.held")
    for name in record.spec.depends:
        other = known(name)
        if other is None:
            return reason("job.dependency_missing", job=name)
        if other.status is not JobStatus.SUCCEEDED:
            return reason("job.dependency_unfinished", job=name, status=str(other.status))
    return None


@dataclass
class Backfill:
    """The backfill policy: later jobs may start before an earlier one with insufficient resources, within a limit.

    The limit is `BACKFILL_LIMIT` jobs of the same or a lower priority; the queue host stores the count (`passed`). Jobs
    of the same size start in order.
    """

    blocked: list[JobRecord]
    passed: dict[str, int]

    def may_start(self, record: JobRecord) -> JobRecord | None:
        """Return the earlier job that `record` has to wait for; None if it may start."""
        for earlier in self.blocked:
            if _constraints(earlier) not in {(), _constraints(record)}:
                continue  # it waits for other nodes
            same = (earlier.spec.gpus, earlier.spec.workers) == (record.spec.gpus, record.spec.workers)
            if same or self.passed.get(earlier.spec.name, 0) >= BACKFILL_LIMIT:
                return earlier
        return None

    def started(self, record: JobRecord) -> Sequence[str]:
        """Count a start, and return the names of the earlier jobs that still wait."""
        names = [earlier.spec.name for earlier in self.blocked if earlier.submitted <= record.submitted]
        for name in names:
            self.passed[name] = self.passed.get(name, 0) + 1
        return names


def _constraints(record: JobRecord) -> tuple[object, ...]:
    """Return the placement constraints of a job; empty if there are none."""
    spec = record.spec
    values = (spec.nodes, spec.exclude, tuple(sorted(spec.selector.items())), spec.gpu_ids, spec.gputopology)
    return values if any(values) else ()
