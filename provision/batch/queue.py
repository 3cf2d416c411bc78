"""In which order waiting jobs start, and who has to wait for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from provision.model.job import JobRecord, JobStatus

__all__ = ["Passing", "cannot_start", "in_order", "waiting_for"]

MOST_PASSED = 16
"""So many younger jobs may start before an older one that does not fit yet; then the line stands still for it."""


def in_order(records: Iterable[JobRecord]) -> list[JobRecord]:
    """Return the waiting jobs as they stand in line: by priority, then by the time of submission, then by name."""
    waiting = [record for record in records if record.status is JobStatus.PENDING]
    return sorted(waiting, key=lambda record: (-record.spec.priority, record.submitted, record.spec.name))


def cannot_start(record: JobRecord, known: Callable[[str], JobRecord | None]) -> str:
    """Return why a job will never start: what it depends on did not succeed; empty when it may."""
    for name in record.spec.depends:
        other = known(name)
        if other is not None and other.status in {JobStatus.FAILED, JobStatus.STOPPED}:
            return f"it depends on {name}, which is {other.status}"
    return ""


def waiting_for(record: JobRecord, known: Callable[[str], JobRecord | None]) -> str:
    """Return why a job must not start whatever is free: held, or jobs that it depends on; empty when it may."""
    if record.spec.hold and record.status is JobStatus.QUEUING:
        return "held: `provision queue release` lets it go"
    for name in record.spec.depends:
        other = known(name)
        if other is None:
            return f"it depends on {name}, which is not there"
        if other.status is not JobStatus.SUCCEEDED:
            return f"it depends on {name}, which is {other.status}"
    return ""


@dataclass
class Passing:
    """Lets small jobs start before a large one that waits, so that GPUs are used, but not for ever.

    A job that did not fit is passed by at most `MOST_PASSED` younger ones of its own priority or less, which is counted
    on the nodes (`passed`). Of jobs of one size none passes another.
    """

    blocked: list[JobRecord]
    passed: dict[str, int]

    def may_start(self, record: JobRecord) -> JobRecord | None:
        """Return the older job that `record` has to wait for; None when it may start before all that wait."""
        for older in self.blocked:
            if _field(older) not in {(), _field(record)}:
                continue  # it waits for nodes of its own choice
            same = (older.spec.gpus, older.spec.workers) == (record.spec.gpus, record.spec.workers)
            if same or self.passed.get(older.spec.name, 0) >= MOST_PASSED:
                return older
        return None

    def started(self, record: JobRecord) -> Sequence[str]:
        """Count a start, and return the names of those that were passed by it."""
        names = [older.spec.name for older in self.blocked if older.submitted <= record.submitted]
        for name in names:
            self.passed[name] = self.passed.get(name, 0) + 1
        return names


def _field(record: JobRecord) -> tuple[object, ...]:
    """Return by what a job narrows down where it may go; nothing for one that goes anywhere."""
    spec = record.spec
    values = (spec.nodes, spec.exclude, tuple(sorted(spec.selector.items())), spec.gpu_ids, spec.gputopology)
    return values if any(values) else ()
