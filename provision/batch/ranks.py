"""The instances of a job and their environment variables, with the names that arena uses."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from provision.model.job import Assignment, JobSpec, Kind

LAUNCHER_LETTERS = 5
NO_GPUS = "void"
"""The value for no GPUs of NVIDIA's runtime; without it, a container would see all GPUs."""


@dataclass(frozen=True)
class Place:
    """The node and GPUs of one worker."""

    node: str
    address: str
    """The node's data address."""
    gpus: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()
    """In the order of `gpus`."""
    nics: tuple[str, ...] = ()


def assignments_of(spec: JobSpec, places: Sequence[Place]) -> tuple[Assignment, ...]:
    """Return the instances of `spec` on `places`, one for each worker in rank order; the leader is the first one.

    pytorch: ``-master-0`` has rank 0, ``-worker-i`` rank i + 1. mpi: ``-launcher-xxxxx`` is an additional
    instance in the container of worker 0; workers of one node share a container, because the ranks of a node must see
    each other's GPUs. run: ``-worker-i`` has rank i.
    """
    if spec.kind is Kind.PYTORCH:
        return tuple(_pytorch(spec.name, places))
    workers = [_assignment(spec.name, "worker", index, index, place) for index, place in enumerate(places)]
    if spec.kind is Kind.RUN:
        return (replace(workers[0], is_leader=True), *workers[1:])
    shared: dict[str, str] = {}
    workers = [
        replace(assignment, container=shared.setdefault(assignment.node, assignment.instance)) for assignment in workers
    ]
    letters = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(LAUNCHER_LETTERS))
    first = workers[0]
    launcher = Assignment(
        f"{spec.name}-launcher-{letters}",
        "launcher",
        0,
        first.node,
        first.address,
        rank=0,
        is_leader=True,
        container=first.container,
    )
    return (launcher, *workers)


def _pytorch(name: str, places: Sequence[Place]) -> Iterator[Assignment]:
    for rank, place in enumerate(places):
        role, index = ("worker", rank - 1) if rank else ("master", 0)
        yield replace(_assignment(name, role, index, rank, place), is_leader=rank == 0)


def _assignment(name: str, role: str, index: int, rank: int, place: Place) -> Assignment:
    instance = f"{name}-{role}-{index}"
    return Assignment(
        instance,
        role,
        index,
        place.node,
        place.address,
        rank,
        gpus=place.gpus,
        uuids=place.uuids,
        nics=place.nics,
        container=instance,
    )


def processes_per_instance(spec: JobSpec) -> int | str:
    """Return the number of processes that torchrun starts in each instance, or its ``auto``, ``gpu``, ``cpu``."""
    if spec.nproc_per_node:
        return int(spec.nproc_per_node) if spec.nproc_per_node.isdecimal() else spec.nproc_per_node
    return max(spec.gpus, 1)


def slots(spec: JobSpec, assignments: Sequence[Assignment]) -> dict[str, int]:
    """Return node -> MPI slots, in the order of the host file: the GPUs of its workers, else one for each worker."""
    counts: dict[str, int] = {}
    for assignment in assignments:
        if assignment.role == "worker":
            counts[assignment.node] = counts.get(assignment.node, 0) + max(spec.gpus, 1)
    return counts


def rank_variables(
    spec: JobSpec, assignment: Assignment, assignments: Sequence[Assignment], port: int
) -> dict[str, str]:
    """Return the environment variables of an instance; they are the same for every engine.

    RANK and WORLD_SIZE count instances. If copies share the instance's GPU (``--procs-per-gpu N``), all copies have the
    same RANK, and a PROCESS_INDEX from 0 to PROCESS_NUM - 1. Copies that train together use the rank
    RANK * PROCESS_NUM + PROCESS_INDEX of WORLD_SIZE * PROCESS_NUM.
    """
    leader = next(one for one in assignments if one.is_leader)
    workers = sum(one.role != "launcher" for one in assignments)
    variables = {
        "PYTHONUNBUFFERED": "1",
        "NVIDIA_VISIBLE_DEVICES": ",".join(_visible(assignment, assignments)) or NO_GPUS,
        "workers": str(workers),
        "gpus": str(spec.gpus),
        "PROVISION_JOB": spec.name,
        "PROVISION_INSTANCE": assignment.instance,
        "PROVISION_NODE": assignment.node,
    }
    if spec.kind is Kind.MPI:
        return variables
    return {
        **variables,
        "MASTER_ADDR": leader.address,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(workers),
        "RANK": str(assignment.rank),
        "PET_NNODES": str(workers),
        "PET_NODE_RANK": str(assignment.rank),
        "PET_NPROC_PER_NODE": str(processes_per_instance(spec)),
        "PET_MASTER_ADDR": leader.address,
        "PET_MASTER_PORT": str(port),
    }


def _visible(assignment: Assignment, assignments: Sequence[Assignment]) -> Iterator[str]:
    """Yield the GPUs of all instances in the same container."""
    for one in assignments:
        if one.container == assignment.container:
            yield from one.uuids


def by_container(assignments: Sequence[Assignment]) -> Mapping[str, tuple[Assignment, ...]]:
    """Return container -> its instances, in the order of `assignments`."""
    instances: dict[str, list[Assignment]] = {}
    for assignment in assignments:
        instances.setdefault(assignment.container, []).append(assignment)
    return {name: tuple(inside) for name, inside in instances.items()}
