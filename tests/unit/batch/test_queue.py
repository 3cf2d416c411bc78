"""Who starts first, and that nobody waits for ever."""

from __future__ import annotations

from provision.batch.queue import MOST_PASSED, Passing, cannot_start, in_order, waiting_for
from provision.model.job import JobRecord, JobSpec, JobStatus, Kind


def job(
    name: str, submitted: float, *, gpus: int = 1, status: JobStatus = JobStatus.PENDING, **more: object
) -> JobRecord:
    """Return a job as the nodes tell of it."""
    spec = JobSpec(name, Kind.RUN, ("x",), gpus=gpus, **more)  # type: ignore[arg-type]
    return JobRecord(spec, name, "me@here", submitted, status)


def test_the_line_is_by_priority_and_then_by_time() -> None:
    """Jobs that do not wait are not in it."""
    jobs = [job("late", 3), job("early", 1), job("urgent", 9, priority=5), job("runs", 0, status=JobStatus.RUNNING)]

    assert [one.spec.name for one in in_order(jobs)] == ["urgent", "early", "late"]


def test_of_jobs_of_one_size_none_passes_another() -> None:
    """First come, first served."""
    passing = Passing([job("first", 1, gpus=8)], {})

    assert passing.may_start(job("second", 2, gpus=8)) is not None
    assert passing.may_start(job("small", 3, gpus=1)) is None


def test_a_large_job_is_passed_so_often_and_no_more() -> None:
    """However many small ones come, the large one starts in the end."""
    large = job("large", 1, gpus=8)
    passed: dict[str, int] = {}
    for number in range(MOST_PASSED):
        passing = Passing([large], passed)
        small = job(f"small{number}", 2 + number)
        assert passing.may_start(small) is None
        passing.started(small)

    assert Passing([large], passed).may_start(job("one-more", 99)) is large


def test_a_job_of_higher_priority_is_not_counted_as_passing() -> None:
    """It stood before the other in line; what was submitted earlier was not passed by it."""
    passing = Passing([job("large", 5, gpus=8)], {})

    passing.started(job("older", 1))

    assert passing.passed == {}


def test_a_job_waits_for_those_that_it_depends_on() -> None:
    """Only success lets it go."""
    done = job("prepare", 1, status=JobStatus.SUCCEEDED)
    failed = job("broken", 1, status=JobStatus.FAILED)
    known = {"prepare": done, "broken": failed}.get

    assert waiting_for(job("a", 2, depends=("prepare",)), known) == ""
    assert "broken, which is FAILED" in waiting_for(job("b", 2, depends=("broken",)), known)
    assert "which is not there" in waiting_for(job("c", 2, depends=("nobody",)), known)


def test_a_job_that_waits_for_nodes_of_its_own_choice_stands_in_nobodys_way() -> None:
    """Only for those that want the same."""
    choosy = job("choosy", 1, nodes=("gpu3",))
    passing = Passing([choosy], {"choosy": MOST_PASSED})

    assert passing.may_start(job("any", 2)) is None
    assert passing.may_start(job("same", 3, nodes=("gpu3",))) is choosy


def test_a_job_that_depends_on_one_that_failed_never_starts() -> None:
    """One that is away may come back."""
    known = {"broken": job("broken", 1, status=JobStatus.FAILED)}.get

    assert "broken, which is FAILED" in cannot_start(job("a", 2, depends=("broken",)), known)
    assert cannot_start(job("b", 2, depends=("nobody",)), known) == ""
