"""Moving the waiting jobs of the engine `direct` to Slurm, on nodes with the real node programs.

Slurm's controller is a STAND-IN, which starts nothing. `tests/integration/test_queue_migration.py` uses a real Slurm.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.errors import LockedError, ProvisionError, UsageError
from provision.jobs.connections import Connections
from provision.jobs.engines.base import Capability, MissingCapability, Secrets, TakeOver, require
from provision.jobs.engines.common import queue_host
from provision.jobs.engines.direct import DirectEngine
from provision.jobs.engines.slurm.engine import SlurmEngine
from provision.jobs.engines.slurm.payload import payload_of
from provision.model.job import JobRecord, JobSpec, JobStatus, Kind
from tests.support.node.direct import recorded, signing_keys
from tests.support.node.node import until
from tests.support.node.slurm_site import QUIET, Site

ALL_GPUS = 4


@pytest.fixture
def direct(site: Site) -> DirectEngine:
    return site.direct()


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Path]:
    """The job of `occupy` ends when this file exists."""
    path = tmp_path / "go"
    yield path
    path.touch()


def submit(direct: DirectEngine, name: str, line: str = "true", secrets: Secrets | None = None, **more: Any) -> str:
    """Submit a job for all GPUs of the node a; return its ID."""
    job = JobSpec(name, Kind.RUN, (line,), image="image", **{"gpus": ALL_GPUS, "nodes": ("a",), **more})
    return direct.submit(job, secrets or Secrets(), QUIET).id


@pytest.fixture
def occupied(direct: DirectEngine, go: Path) -> Callable[[], JobRecord]:
    """Let a job of the engine `direct` use all GPUs of the node a; return a function that awaits its success."""
    submit(direct, "busy", f"until [ -e {go} ]; do sleep 0.02; done")
    until(lambda: direct.get("busy").status is JobStatus.RUNNING, "busy to run")

    def end() -> JobRecord:
        go.touch()
        until(lambda: direct.get("busy").status.over, "busy to end")
        return direct.get("busy")

    return end


def started(direct: DirectEngine) -> tuple[str, ...]:
    """Do a scheduling pass; return the jobs that it started."""
    with direct.maintenance() as maintenance:
        return maintenance.run(QUIET).started


def names(result: TakeOver) -> list[str]:
    return [one.job.spec.name for one in result.moved]


def remaining(result: TakeOver) -> dict[str, str | None]:
    return {one.job.spec.name: one.error.code for one in result.remaining}


def entry(site: Site, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((site.node.folder / "jobs" / name / "queue.json").read_text())
    return document


def comments(site: Site) -> list[str]:
    """The comments of the jobs in Slurm, in the order of their submission."""
    return [row[-1] for row in site.rows()]


def test_waiting_jobs_become_jobs_of_slurm_in_their_order(
    site: Site, direct: DirectEngine, occupied: Callable[[], JobRecord]
) -> None:
    """Name, ID, owner and specification stay; the engine `direct` does not start them any more."""
    tokens = {
        "low": submit(direct, "low"),
        "after": submit(direct, "after", depends=("low",), priority=9),
        "held": submit(direct, "held", hold=True),
        "high": submit(direct, "high", priority=5),
    }
    owners = {name: direct.get(name).owner for name in tokens}
    result = site.engine.take_over(QUIET)

    assert names(result) == ["low", "after", "high", "held"]
    assert comments(site) == [f"provision:{name}@{tokens[name]}" for name in names(result)]
    assert [one.engine_job for one in result.moved] == [1, 2, 3, 4]
    assert "--dependency=afterok:1" in site.options(2)
    assert "--nice=-5" in site.options(3)
    assert ["--hold" in site.options(number) for number in (1, 2, 3, 4)] == [False, False, False, True]
    assert {name: site.engine.get(name).owner for name in tokens} == owners
    assert site.engine.get("held").status is JobStatus.QUEUING
    assert payload_of(site.script(3)).spec == JobSpec(
        "high", Kind.RUN, ("true",), image="image", gpus=ALL_GPUS, nodes=("a",), priority=5
    )
    assert occupied().status is JobStatus.SUCCEEDED
    assert started(direct) == ()
    assert {direct.get(name).id for name in tokens} == set(tokens.values())


def test_a_started_job_is_reported_with_its_nodes_and_finishes(site: Site, occupied: Callable[[], JobRecord]) -> None:
    result = site.engine.take_over(QUIET)

    (busy,) = result.unfinished
    assert (busy.spec.name, busy.status, set(busy.allocations)) == ("busy", JobStatus.RUNNING, {"a"})
    assert (result.moved, site.rows()) == ((), [])
    assert site.engine.get("busy").cause.code == ""
    assert occupied().status is JobStatus.SUCCEEDED
    assert site.engine.get("busy").status is JobStatus.SUCCEEDED
    assert site.again().take_over(QUIET) == TakeOver()


@pytest.mark.usefixtures("occupied")
def test_a_started_job_of_direct_is_stopped_and_deleted_as_before(site: Site) -> None:
    """After the inventory has chosen Slurm; Slurm has no job of it."""
    assert site.engine.stop("busy", QUIET, grace=1).status is JobStatus.STOPPED
    site.engine.delete("busy", QUIET)

    assert [job.spec.name for job in site.engine.jobs().jobs] == []
    assert site.rows() == []


@pytest.mark.usefixtures("occupied")
def test_a_dry_run_changes_nothing(site: Site, direct: DirectEngine) -> None:
    submit(direct, "mnist")
    submit(direct, "chosen", gpu_ids=(0,), gpus=1)
    before = [entry(site, name) for name in ("mnist", "chosen")]
    result = site.engine.take_over(QUIET, dry_run=True)

    assert (names(result), remaining(result)) == (["mnist"], {"chosen": "slurm.unsupported_option"})
    assert [one.engine_job for one in result.moved] == [0]
    assert ([entry(site, name) for name in ("mnist", "chosen")], site.rows()) == (before, [])


@pytest.mark.usefixtures("occupied")
def test_a_second_move_changes_nothing(site: Site, direct: DirectEngine) -> None:
    submit(direct, "mnist")
    site.engine.take_over(QUIET)
    second = site.again().take_over(QUIET)

    assert (second.moved, second.remaining, len(site.rows())) == ((), (), 1)


@pytest.mark.parametrize("had_submitted", [False, True])
def test_an_interrupted_move_is_completed_by_the_next_one(
    site: Site,
    direct: DirectEngine,
    occupied: Callable[[], JobRecord],
    monkeypatch: pytest.MonkeyPatch,
    *,
    had_submitted: bool,
) -> None:
    """The engine `direct` does not start the job in between, and Slurm gets it once."""
    submit(direct, "mnist")
    submit(direct, "other")
    submit_to_slurm = site.engine._sbatch

    def interrupted(token: str, batch: Any) -> int:
        if had_submitted:
            submit_to_slurm(token, batch)
        raise KeyboardInterrupt

    monkeypatch.setattr(site.engine, "_sbatch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        site.engine.take_over(QUIET)
    if not had_submitted:
        assert site.again().get("mnist").cause.code == "slurm.moving"
    occupied()
    assert started(direct) == ("other",)

    site.again().take_over(QUIET)
    assert comments(site) == [f"provision:mnist@{direct.get('mnist').id}"]
    assert site.again().get("mnist").cause.code == "slurm.resources"
    assert started(direct) == ()


def test_a_job_that_slurm_refuses_stays_in_the_queue_of_direct(
    site: Site, direct: DirectEngine, occupied: Callable[[], JobRecord]
) -> None:
    text = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
    (site.node.folder / "bin/sbatch").write_text(f"#!/bin/sh\necho '{text}' >&2; exit 1\n")
    submit(direct, "mnist")
    result = site.engine.take_over(QUIET)

    assert (result.moved, remaining(result)) == ((), {"mnist": "slurm.never_nodes"})
    occupied()
    assert started(direct) == ("mnist",)


@pytest.mark.usefixtures("occupied")
def test_a_job_stays_marked_while_it_is_not_known_whether_slurm_has_it(site: Site, direct: DirectEngine) -> None:
    (site.node.folder / "bin/sbatch").write_text("#!/bin/sh\nexit 124\n")
    submit(direct, "mnist")

    assert remaining(site.engine.take_over(QUIET)) == {"mnist": "slurm.uncertain"}
    assert entry(site, "mnist")["engine"] == "slurm"


def test_a_job_that_waits_for_its_next_attempt_is_moved_with_that_attempt(site: Site, direct: DirectEngine) -> None:
    submit(direct, "mnist", "exit 3", retry=2)
    until(lambda: direct.get("mnist").retrying, "mnist to fail")
    result = site.engine.take_over(QUIET)

    assert (names(result), payload_of(site.script(1)).first_attempt) == (["mnist"], 2)
    assert started(direct) == ()


# Signatures and secrets


@pytest.mark.usefixtures("occupied")
def test_secrets_of_a_waiting_job_stay_and_slurm_gets_them_encrypted(site: Site, direct: DirectEngine) -> None:
    submit(direct, "mnist", secrets=Secrets({"TOKEN": "s3cret"}), secret_env=("TOKEN",))
    site.engine.take_over(QUIET)

    assert "BEGIN CMS" in payload_of(site.script(1)).sealed
    assert "s3cret" not in site.script(1)
    assert site.node.ok("secrets", name="mnist")["env"] == {"TOKEN": "s3cret"}


def tamper(site: Site, **changes: Any) -> None:
    path = site.node.folder / "jobs/mnist/job.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.usefixtures("occupied")
@pytest.mark.parametrize(
    ("break_job", "code"),
    [
        (lambda site: tamper(site, signature="x"), "job.signature"),
        (lambda site: (site.node.folder / "jobs/mnist/secrets.json").unlink(), "job.secrets_missing"),
    ],
)
def test_a_job_without_its_signature_or_secrets_is_named_and_not_moved(
    site: Site, direct: DirectEngine, break_job: Callable[[Site], None], code: str
) -> None:
    """Only its owner can submit it again with them."""
    submit(direct, "mnist", secrets=Secrets({"TOKEN": "s3cret"}), secret_env=("TOKEN",))
    submit(direct, "other")
    break_job(site)
    dry = site.engine.take_over(QUIET, dry_run=True)
    result = site.engine.take_over(QUIET)

    assert (names(dry), remaining(dry)) == (names(result), remaining(result)) == (["other"], {"mnist": code})
    assert entry(site, "mnist")["engine"] == "direct"


@pytest.mark.usefixtures("occupied")
def test_a_job_that_was_signed_for_another_cluster_is_not_moved(site: Site) -> None:
    job = JobSpec("mnist", Kind.RUN, ("true",), image="image")
    document = recorded(signing_keys(site.node), job, cluster="another")
    site.node.ok("reserve", name="mnist", job=document, queue={"state": "pending"}, secrets={})

    assert remaining(site.engine.take_over(QUIET)) == {"mnist": "job.cluster"}
    assert site.rows() == []


# Dependencies


def test_a_job_that_depends_on_a_started_one_is_moved_after_its_end(
    site: Site, direct: DirectEngine, occupied: Callable[[], JobRecord]
) -> None:
    submit(direct, "after", depends=("busy",))
    submit(direct, "last", depends=("after",))
    result = site.engine.take_over(QUIET)
    assert remaining(result) == {"after": "slurm.dependency_of_direct", "last": "slurm.dependency_of_direct"}
    occupied()

    assert names(site.again().take_over(QUIET)) == ["after", "last"]
    assert [one for one in site.options(1) if "dependency" in one] == []


def test_a_job_whose_dependency_failed_is_not_moved(site: Site, direct: DirectEngine) -> None:
    direct.drain(["a"], "test")
    submit(direct, "first")
    submit(direct, "after", depends=("first",))
    site.engine.stop("first", QUIET)

    assert remaining(site.engine.take_over(QUIET)) == {"after": "job.dependency_failed"}


# Two engines


CHANGES: dict[str, Callable[[DirectEngine | SlurmEngine], object]] = {
    "stop": lambda engine: engine.stop("mnist", QUIET),
    "delete": lambda engine: engine.delete("mnist", QUIET),
    "restart": lambda engine: engine.restart("mnist", QUIET),
}


@pytest.mark.usefixtures("occupied")
@pytest.mark.parametrize("verb", CHANGES)
def test_the_engine_direct_does_not_change_a_job_of_slurm(site: Site, direct: DirectEngine, verb: str) -> None:
    """It cannot end the job in Slurm, and a restart would start it twice."""
    submit(direct, "mnist")
    site.engine.take_over(QUIET)
    with pytest.raises(UsageError) as caught:
        CHANGES[verb](direct)

    assert caught.value.code == "job.of_other_engine"
    assert site.rows()[0][2] == "PENDING"
    CHANGES[verb](site.again())
    assert site.rows()[0][2] == "CANCELLED"


def test_the_engine_direct_does_not_start_a_job_that_was_submitted_to_slurm(site: Site, direct: DirectEngine) -> None:
    """Also while the number of the job in Slurm is not recorded yet."""
    site.submit("mnist", gpus=1)
    assert started(direct) == ()
    site.node.ok("queue", name="mnist", queue={"engine_job": 0}, merge=True)
    assert started(direct) == ()


@pytest.mark.usefixtures("occupied")
def test_slurm_shows_why_a_job_of_direct_waits(site: Site, direct: DirectEngine) -> None:
    submit(direct, "mnist")

    assert site.engine.get("mnist").cause.code == "slurm.of_direct"


@pytest.mark.usefixtures("occupied")
def test_nothing_is_moved_while_another_command_starts_jobs(
    site: Site, direct: DirectEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That command has read the queue, and could start a job that is being moved."""
    submit(direct, "mnist")
    with Connections(direct._contact) as connections, queue_host.queue_held(connections, "a"):
        monkeypatch.setattr(queue_host, "QUEUE_SECONDS", 0.0)
        with pytest.raises(LockedError):
            site.engine.take_over(QUIET)

    assert (site.rows(), entry(site, "mnist")["engine"]) == ([], "direct")


@pytest.mark.usefixtures("occupied")
def test_a_job_that_is_stopped_during_its_move_does_not_start(
    site: Site, direct: DirectEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(direct, "mnist")
    submit_to_slurm = site.engine._sbatch

    def overtaken(token: str, batch: Any) -> int:
        number = submit_to_slurm(token, batch)
        site.again().stop("mnist", QUIET)
        return number

    monkeypatch.setattr(site.engine, "_sbatch", overtaken)
    result = site.engine.take_over(QUIET)

    assert remaining(result) == {"mnist": "slurm.superseded"}
    assert [row[2] for row in site.rows()] == ["CANCELLED"]
    assert direct.get("mnist").status is JobStatus.STOPPED


# Refusals


def without_squeue(site: Site) -> None:
    (site.node.folder / "bin/squeue").unlink()


def without_nodes(site: Site) -> None:
    (site.folder / "nodes").write_text("login\x1fidle\x1f\x1f\x1f0/8/0/8\x1fnone\x1f\n")


@pytest.mark.usefixtures("occupied")
@pytest.mark.parametrize("break_slurm", [without_squeue, without_nodes])
def test_nothing_is_moved_to_a_cluster_without_slurm(
    site: Site, direct: DirectEngine, break_slurm: Callable[[Site], None]
) -> None:
    submit(direct, "mnist")
    before = entry(site, "mnist")
    break_slurm(site)
    with pytest.raises(UsageError) as caught:
        site.engine.take_over(QUIET)

    assert (caught.value.code, caught.value.exit_code) == ("slurm.not_set_up", 2)
    assert "provision apply" in str(caught.value.remedy)
    assert entry(site, "mnist") == before


def test_jobs_in_the_queue_of_another_queue_host_are_named(site: Site) -> None:
    """The engines choose it by different variables, so it may have changed."""
    job = recorded(signing_keys(site.node), JobSpec("mnist", Kind.RUN, ("true",), image="image"))
    site.other.ok("reserve", name="mnist", job=job, queue={"state": "pending"}, secrets={})
    result = site.engine.take_over(QUIET)

    assert remaining(result) == {"mnist": "slurm.other_queue_host"}
    assert "slurm_controller" in str(result.remaining[0].error.remedy)


def test_the_engine_direct_takes_over_no_jobs(direct: DirectEngine) -> None:
    with pytest.raises(MissingCapability):
        require(direct, Capability.TAKE_OVER, "provision queue migrate")
    with pytest.raises(ProvisionError):
        direct.take_over(QUIET)
