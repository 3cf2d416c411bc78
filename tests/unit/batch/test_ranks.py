"""Names, ranks and variables are those of arena and torch."""

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
    """The launcher has no GPU and runs with worker 0; workers of a node share a container."""
    launcher, *workers = assignments_of(spec(Kind.MPI), (*PLACES, OTHER))

    assert re.fullmatch(r"dist-launcher-[a-z0-9]{5}", launcher.instance)
    assert launcher.is_leader
    assert launcher.gpus == ()
    assert [assignment.instance for assignment in workers] == ["dist-worker-0", "dist-worker-1", "dist-worker-2"]
    assert [assignment.container for assignment in (launcher, *workers)] == ["dist-worker-0"] * 3 + ["dist-worker-2"]


def test_slots_are_the_gpus_of_the_workers() -> None:
    """Two workers of two GPUs on one node are four slots there."""
    assert slots(spec(Kind.MPI), assignments_of(spec(Kind.MPI), (*PLACES, OTHER))) == {"a": 4, "b": 2}


@pytest.mark.row(34, 35)
def test_each_rank_gets_the_address_of_the_master() -> None:
    """The address is the same for all ranks, including the master."""
    job = spec(Kind.PYTORCH)
    assignments = assignments_of(job, (*PLACES, OTHER))

    variables = [rank_variables(job, assignment, assignments, 29511) for assignment in assignments]

    assert {one["MASTER_ADDR"] for one in variables} == {"10.0.0.1"}
    assert {one["MASTER_PORT"] for one in variables} == {"29511"}
    assert [one["RANK"] for one in variables] == ["0", "1", "2"]
    assert {one["WORLD_SIZE"] for one in variables} == {"3"}
    assert variables[2]["PET_NODE_RANK"] == "2"
    assert variables[2]["PET_NNODES"] == "3"
    assert {(one["PET_MASTER_ADDR"], one["PET_MASTER_PORT"]) for one in variables} == {("10.0.0.1", "29511")}
    assert {one["PET_NPROC_PER_NODE"] for one in variables} == {"2"}
    assert variables[2]["NVIDIA_VISIBLE_DEVICES"] == "GPU-b4,GPU-b5"
    assert (variables[0]["workers"], variables[0]["gpus"], variables[0]["PYTHONUNBUFFERED"]) == ("3", "2", "1")


def test_workers_of_mpi_on_a_node_see_all_of_its_gpus() -> None:
    """Ranks of one node use each other's GPUs only if these are visible."""
    job = spec(Kind.MPI)
    assignments = assignments_of(job, (*PLACES, OTHER))

    assert (
        rank_variables(job, assignments[0], assignments, 1)["NVIDIA_VISIBLE_DEVICES"] == "GPU-a0,GPU-a1,GPU-a2,GPU-a3"
    )
    assert "RANK" not in rank_variables(job, assignments[0], assignments, 1)


@pytest.mark.row(10)
def test_an_instance_without_gpus_sees_none() -> None:
    """Without a setting, NVIDIA's runtime gives all GPUs to a container."""
    job = JobSpec("cpu", Kind.PYTORCH, ("x",), workers=1)

    assert rank_variables(job, *_alone(job), 1)["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.row(58)
def test_torchrun_starts_a_process_for_each_gpu_by_default() -> None:
    """--nproc-per-node is passed unchanged."""
    assert processes_per_instance(spec(Kind.PYTORCH)) == 2
    assert processes_per_instance(spec(Kind.PYTORCH, nproc_per_node="auto")) == "auto"
    assert processes_per_instance(spec(Kind.PYTORCH, nproc_per_node="4")) == 4
    assert processes_per_instance(JobSpec("c", Kind.PYTORCH, ("x",))) == 1


def _alone(job: JobSpec) -> tuple:  # type: ignore[type-arg]
    assignments = assignments_of(job, (Place("a", "10.0.0.1"),))
    return assignments[0], assignments
