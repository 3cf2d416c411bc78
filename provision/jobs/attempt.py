"""One attempt of a job: its assignments, and its containers as commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.batch import mpi
from provision.batch.containers import NodeHardware, create_words, program_words
from provision.batch.names import attempt_folder
from provision.batch.ranks import by_container, rank_variables, slots
from provision.batch.units import unit_of, unit_variables
from provision.documents.jobs import Prepared, SignedJob
from provision.jobs.cluster_snapshot import ClusterSnapshot
from provision.model import Setting
from provision.model.job import Assignment, JobSpec, Kind
from provision.model.job_requests import Secrets
from provision.profiles import data_subnets, fabric_settings


@dataclass(frozen=True)
class Attempt:
    """One attempt of a job, with its assignments."""

    spec: JobSpec
    id: str
    number: int
    job: Mapping[str, Any]
    """The content of job.json on the nodes."""
    assignments: tuple[Assignment, ...]
    secrets: Secrets
    snapshot: ClusterSnapshot
    fenced: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Node -> UUIDs that are leased without an instance, on the nodes of an exclusive job."""
    notes: tuple[str, ...] = ()
    """Warnings for the submitter."""
    signed: SignedJob | None = None
    """The signed job; None for a dry run."""
    own: bool = False
    """Whether the user of this controller submitted it."""

    @property
    def nodes(self) -> list[str]:
        """The nodes, in the order of the ranks."""
        return list(dict.fromkeys(assignment.node for assignment in self.assignments))

    @property
    def leader(self) -> Assignment:
        """The instance whose end is the end of the job."""
        return next(assignment for assignment in self.assignments if assignment.is_leader)

    @property
    def folder(self) -> str:
        """The folder of the attempt on each node."""
        return attempt_folder(self.spec.name, self.number)

    def leases(self, node: str) -> dict[str, str]:
        """Return UUID -> instance of the GPUs on a node; empty for a GPU that is leased without an instance."""
        own = {
            uuid: assignment.instance
            for assignment in self.assignments
            if assignment.node == node
            for uuid in assignment.uuids
        }
        return {**dict.fromkeys(self.fenced.get(node, ()), ""), **own}


def image_of(spec: JobSpec, assignment: Assignment) -> str:
    """Return the image of the container whose first assignment this is."""
    return (spec.worker_image or spec.image) if not assignment.is_leader and assignment.role == "worker" else spec.image


def environment_of(attempt: Attempt, assignment: Assignment, port: int) -> dict[str, str]:
    """Return the variables of an instance without secrets; those of the user override the others."""
    spec = attempt.spec
    variables = {
        **_of_node(_fabric(attempt), assignment.node),
        **rank_variables(spec, assignment, attempt.assignments, port),
    }
    if spec.kind is Kind.MPI and assignment.is_leader:
        interfaces = {attempt.snapshot.interfaces.get(name, "") for name in attempt.nodes}
        subnets = data_subnets(attempt.nodes, attempt.snapshot.networks)
        variables |= mpi.launcher_variables(sorted(interfaces) if all(interfaces) else (), subnets)
    if spec.no_container:
        variables |= unit_variables([one for one in attempt.assignments if one.container == assignment.container])
    return {**variables, **spec.env}


def _fabric(attempt: Attempt) -> tuple[Setting, ...]:
    """Return NCCL's variables; a job without GPUs uses no NCCL."""
    spec = attempt.spec
    networks = [attempt.snapshot.networks[name] for name in attempt.nodes if name in attempt.snapshot.networks]
    return fabric_settings(networks, spec.fabric, spec.preset) if spec.gpus else ()


def _of_node(settings: Sequence[Setting], node: str) -> dict[str, str]:
    """Return the values of variables on a node."""
    values: dict[str, str] = {}
    for setting in settings:
        value = (setting.nodes or {}).get(node) if setting.value is None else setting.value
        if value is not None:
            values[setting.name] = value
    return values


def command_of(attempt: Attempt, assignment: Assignment, logins: Sequence[mpi.Login]) -> tuple[str, ...]:
    """Return the command of the container whose first assignment this is."""
    spec = attempt.spec
    if spec.kind is not Kind.MPI:
        return program_words(spec)
    if assignment.is_leader:
        # Variables that differ between nodes are set on each worker: mpirun would pass on those of the first node.
        same = [setting.name for setting in _fabric(attempt) if not setting.nodes]
        given = tuple(dict.fromkeys((*same, *spec.env, *spec.secret_env)))
        return mpi.mpi_command(spec, given, sum(slots(spec, attempt.assignments).values()))
    return mpi.sshd_command(next(login for login in logins if login.node == assignment.node))


def containers_of(
    attempt: Attempt,
    node: str,
    logins: Sequence[mpi.Login],
    port: int,
    prepared: Prepared,
    mounts: Sequence[str],
) -> Iterator[dict[str, Any]]:
    """Yield the entries of the containers or units on a node for its supervisor: ``containers`` of README.md.

    `mounts` are ``/source:/target[:ro]`` of code and data.
    """
    spec = attempt.spec
    for name, inside in by_container(
        [assignment for assignment in attempt.assignments if assignment.node == node]
    ).items():
        assignment = inside[0]
        waits = spec.kind is Kind.MPI and not assignment.is_leader
        entry = command_of(attempt, assignment, logins)
        yield {
            "name": name,
            "phase": 1 if waits else 2,
            **_runtime(attempt, inside, prepared, mounts, entry),
            "env": {**environment_of(attempt, assignment, port), **attempt.secrets.env},
            "ready_port": next(login.port for login in logins if login.node == node) if waits else 0,
            "ready_address": assignment.address,
            "log_instance": assignment.instance,
            "instances": [one.instance for one in inside],
            "account": spec.user.partition(",")[0],
        }


def _runtime(
    attempt: Attempt, inside: Sequence[Assignment], prepared: Prepared, mounts: Sequence[str], entry: Sequence[str]
) -> dict[str, Any]:
    """Return the part of an entry that describes the container or unit itself."""
    spec, assignment = attempt.spec, inside[0]
    hardware = attempt.snapshot.hardware.get(assignment.node, NodeHardware())
    if spec.no_container:
        unit = unit_of(spec, hardware=hardware, folder=attempt.folder, mounts=mounts, entry=entry)
        return {"unit": unit}
    reference = image_of(spec, assignment)
    image_record = prepared.images.get(reference)
    image = image_record.id if image_record is not None and image_record.id else reference
    labels = {
        "provision.job": spec.name,
        "provision.id": attempt.id,
        "provision.attempt": str(attempt.number),
        "provision.instance": assignment.instance,
    }
    create = create_words(
        spec,
        inside,
        image,
        labels=labels,
        hardware=hardware,
        folder=attempt.folder,
        mounts=mounts,
        entry=entry,
    )
    return {"create": create}
