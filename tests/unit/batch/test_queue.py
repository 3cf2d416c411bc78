"""Order of waiting jobs, dependencies and the limits of the backfill policy."""

from __future__ import annotations

from provision.batch.queue import BACKFILL_LIMIT, Backfill, cannot_start, in_order, waiting_for
from provision.model.job import JobRecord, JobSpec, JobStatus, Kind
from provision.model.reason import reason


def job(
    name: str, submitted: float, *, gpus: int = 1, status: JobStatus = JobStatus.PENDING, **more: object
) -> JobRecord:
    """Return the record of a job."""
    spec = JobSpec(name, Kind.RUN, ("x",), gpus=gpus, **more)  # type: ignore[arg-type]
    return JobRecord(spec, name, "me@here", submitted, status)


def test_waiting_jobs_are_ordered_by_priority_and_time() -> None:
    """Only waiting jobs are in the queue."""
    jobs = [job("late", 3), job("early", 1), job("urgent", 9, priority=5), job("runs", 0, status=JobStatus.RUNNING)]

    assert [one.spec.name for one in in_order(jobs)] == ["urgent", "early", "late"]


def test_jobs_of_the_same_size_start_in_order() -> None:
    """Backfill only uses smaller jobs."""
    backfill = Backfill([job("first", 1, gpus=8)], {})

    assert backfill.may_start(job("second", 2, gpus=8)) is not None
    assert backfill.may_start(job("small", 3, gpus=1)) is None


def test_backfill_is_limited() -> None:
    """A large job starts eventually, even if small jobs are submitted all the time."""
    large = job("large", 1, gpus=8)
    passed: dict[str, int] = {}
    for number in range(BACKFILL_LIMIT):
        backfill = Backfill([large], passed)
        small = job(f"small{number}", 2 + number)
        assert backfill.may_start(small) is None
        backfill.started(small)

    assert Backfill([large], passed).may_start(job("one-more", 99)) is large


def test_a_job_that_was_submitted_earlier_is_not_counted() -> None:
    """It was before the other job in the queue."""
    backfill = Backfill([job("large", 5, gpus=8)], {})

    backfill.started(job("older", 1))

    assert backfill.passed == {}


def test_a_job_waits_for_its_dependencies() -> None:
    """All of them have to succeed."""
    done = job("prepare", 1, status=JobStatus.SUCCEEDED)
    failed = job("broken", 1, status=JobStatus.FAILED)
    known = {"prepare": done, "broken": failed}.get

    assert waiting_for(job("a", 2, depends=("prepare",)), known) is None
    unfinished = reason("job.dependency_unfinished", job="broken", status="FAILED")
    assert waiting_for(job("b", 2, depends=("broken",)), known) == unfinished
    missing = reason("job.dependency_missing", job="missing")
    assert waiting_for(job("c", 2, depends=("missing",)), known) == missing
    held = job("d", 2, status=JobStatus.QUEUING, hold=True)
    assert waiting_for(held, known) == reason("job.held")


def test_a_job_with_placement_constraints_blocks_only_jobs_with_the_same_ones() -> None:
    """Other jobs use other nodes."""
    constrained = job("constrained", 1, nodes=("gpu3",))
    backfill = Backfill([constrained], {"constrained": BACKFILL_LIMIT})

    assert backfill.may_start(job("any", 2)) is None
    assert backfill.may_start(job("same", 3, nodes=("gpu3",))) is constrained


def test_a_job_that_depends_on_one_that_failed_never_starts() -> None:
    """A missing dependency may be submitted later."""
    known = {"broken": job("broken", 1, status=JobStatus.FAILED)}.get

    failed = reason("job.dependency_failed", job="broken", status="FAILED")
    assert cannot_start(job("a", 2, depends=("broken",)), known) == failed
    assert cannot_start(job("b", 2, depends=("missing",)), known) is None
