"""Names, ranks and variables are those that arena's users and torch know."""

from __future__ import annotations

import re

import pytest

from provision.batch.ranks import Place, assignments_of, processes_per_instance, rank_variables, slots
from provision.model.job import JobSpec, Kind

PLACES = (Place("a", "10.0.0.1", (0, 1), ("GPU-a0", "GPU-a1")), Place("a", "10.0.0.1", (2, 3), ("GPU-a2", "GPU-a3")))
OTHER = Place("b", "10.0.0.2", (4, 5), ("GPU-b4", "GPU-b5"))


def spec(kind: Kind, **more: object) -> JobSpec:
    """Return a job of three workers with two GPUs each."""
    return JobSpec("dist", kind, ("python train.py",), image="i", gpus=2, workers=3, **more)  # type: ignore[arg-type]


@pytest.mark.row(11, 34)
def test_pytorch_has_one_master_and_its_workers_follow() -> None:
    """Workers include the master; worker i has rank i + 1."""
    assignments = assignments_of(spec(Kind.PYTORCH), (*PLACES, OTHER))

    assert [(assignment.instance, assignment.rank, assignment.is_leader) for assignment in assignments] == [
        ("dist-master-0", 0, True),
        ("dist-worker-0", 1, False),
        ("dist-worker-1", 2, False),
    ]
    assert [assignment.container for assignment in assignments] == [assignment.instance for assignment in assignments]


@pytest.mark.row(11, 16)
def test_mpi_has_a_launcher_beside_its_workers() -> None:
    """The launcher has no GPU of its own, lives with worker 0, and workers of a node share a container."""
    launcher, *workers = assignments_of(spec(Kind.MPI), (*PLACES, OTHER))

    assert re.fullmatch(r"dist-launcher-[a-z0-9]{5}", launcher.instance)
    assert launcher.is_leader
    assert launcher.gpus == ()
    assert [assignment.instance for assignment in workers] == ["dist-worker-0", "dist-worker-1", "dist-worker-2"]
    assert [assignment.container for assignment in (launcher, *workers)] == ["dist-worker-0"] * 3 + ["dist-worker-2"]


def test_a_host_files_slots_are_the_gpus_of_the_workers() -> None:
    """Two workers of two GPUs on one node are four slots there."""
    assert slots(spec(Kind.MPI), assignments_of(spec(Kind.MPI), (*PLACES, OTHER))) == {"a": 4, "b": 2}


@pytest.mark.row(34, 35)
def test_each_rank_is_told_where_the_master_is() -> None:
    """The master's address is the same for all, also for itself."""
    job = spec(Kind.PYTORCH)
    assignments = assignments_of(job, (*PLACES, OTHER))

    told = [rank_variables(job, assignment, assignments, 29511) for assignment in assignments]

    assert {one["MASTER_ADDR"] for one in told} == {"10.0.0.1"}
    assert {one["MASTER_PORT"] for one in told} == {"29511"}
    assert [one["RANK"] for one in told] == ["0", "1", "2"]
    assert {one["WORLD_SIZE"] for one in told} == {"3"}
    assert told[2]["PET_NODE_RANK"] == "2"
    assert told[2]["PET_NNODES"] == "3"
    assert {(one["PET_MASTER_ADDR"], one["PET_MASTER_PORT"]) for one in told} == {("10.0.0.1", "29511")}
    assert {one["PET_NPROC_PER_NODE"] for one in told} == {"2"}
    assert told[2]["NVIDIA_VISIBLE_DEVICES"] == "GPU-b4,GPU-b5"
    assert (told[0]["workers"], told[0]["gpus"], told[0]["PYTHONUNBUFFERED"]) == ("3", "2", "1")


def test_workers_of_mpi_on_a_node_see_all_of_its_gpus() -> None:
    """Ranks of one node reach each other's GPUs only when they see them."""
    job = spec(Kind.MPI)
    assignments = assignments_of(job, (*PLACES, OTHER))

    assert (
        rank_variables(job, assignments[0], assignments, 1)["NVIDIA_VISIBLE_DEVICES"] == "GPU-a0,GPU-a1,GPU-a2,GPU-a3"
    )
    assert "RANK" not in rank_variables(job, assignments[0], assignments, 1)


@pytest.mark.row(10)
def test_an_instance_without_gpus_sees_none() -> None:
    """NVIDIA's runtime shows all GPUs to a container that says nothing."""
    job = JobSpec("cpu", Kind.PYTORCH, ("x",), workers=1)

    assert rank_variables(job, *_alone(job), 1)["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.row(58)
def test_torchrun_makes_a_process_for_each_gpu_unless_told_otherwise() -> None:
    """nproc-per-node goes on as it is."""
    assert processes_per_instance(spec(Kind.PYTORCH)) == 2
    assert processes_per_instance(spec(Kind.PYTORCH, nproc_per_node="auto")) == "auto"
    assert processes_per_instance(spec(Kind.PYTORCH, nproc_per_node="4")) == 4
    assert processes_per_instance(JobSpec("c", Kind.PYTORCH, ("x",))) == 1


def _alone(job: JobSpec) -> tuple:  # type: ignore[type-arg]
    assignments = assignments_of(job, (Place("a", "10.0.0.1"),))
    return assignments[0], assignments
