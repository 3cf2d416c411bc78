"""One start of a job: its places, and its containers as text."""

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
from provision.jobs.cluster_snapshot import Known
from provision.model import Setting
from provision.model.job import JobSpec, Kind, Seat
from provision.model.job_requests import Secrets
from provision.profiles import data_subnets, fabric_settings

__all__ = ["Attempt", "command_of", "containers_of", "environment_of", "image_of"]


@dataclass(frozen=True)
class Attempt:
    """One start of a job, with its places."""

    spec: JobSpec
    id: str
    number: int
    job: Mapping[str, Any]
    """What the nodes keep as job.json."""
    seats: tuple[Seat, ...]
    secrets: Secrets
    known: Known
    fenced: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Node -> UUIDs that are held too, for nobody: of a node that a job has for itself."""
    notes: tuple[str, ...] = ()
    """What the submitter is told of the start."""
    signed: SignedJob | None = None
    """What was signed; None for a dry run."""
    own: bool = False
    """Whether the user of this controller submitted it."""

    @property
    def nodes(self) -> list[str]:
        """The nodes, in the order of the ranks."""
        return list(dict.fromkeys(seat.node for seat in self.seats))

    @property
    def chief(self) -> Seat:
        """The instance whose end is the job's."""
        return next(seat for seat in self.seats if seat.chief)

    @property
    def folder(self) -> str:
        """Where it is kept on each node."""
        return attempt_folder(self.spec.name, self.number)

    def leases(self, node: str) -> dict[str, str]:
        """Return UUID -> instance of the GPUs on a node; one that is held for nobody has none."""
        own = {uuid: seat.instance for seat in self.seats if seat.node == node for uuid in seat.uuids}
        return {**dict.fromkeys(self.fenced.get(node, ()), ""), **own}


def image_of(spec: JobSpec, seat: Seat) -> str:
    """Return the image of the container that a seat is the first of."""
    return (spec.worker_image or spec.image) if not seat.chief and seat.role == "worker" else spec.image


def environment_of(attempt: Attempt, seat: Seat, port: int) -> dict[str, str]:
    """Return an instance's variables without secrets: its place, its fabric's, and what the user gave, which wins."""
    spec = attempt.spec
    found = {**_of_node(_fabric(attempt), seat.node), **rank_variables(spec, seat, attempt.seats, port)}
    if spec.kind is Kind.MPI and seat.chief:
        interfaces = {attempt.known.interfaces.get(name, "") for name in attempt.nodes}
        subnets = data_subnets(attempt.nodes, attempt.known.networks)
        found |= mpi.launcher_variables(sorted(interfaces) if all(interfaces) else (), subnets)
    if spec.no_container:
        found |= unit_variables([one for one in attempt.seats if one.container == seat.container])
    return {**found, **spec.env}


def _fabric(attempt: Attempt) -> tuple[Setting, ...]:
    """Return NCCL's variables; a job without GPUs uses no NCCL."""
    spec = attempt.spec
    networks = [attempt.known.networks[name] for name in attempt.nodes if name in attempt.known.networks]
    return fabric_settings(networks, spec.fabric, spec.preset) if spec.gpus else ()


def _of_node(settings: Sequence[Setting], node: str) -> dict[str, str]:
    """Return the values of variables on a node."""
    found: dict[str, str] = {}
    for setting in settings:
        value = (setting.nodes or {}).get(node) if setting.value is None else setting.value
        if value is not None:
            found[setting.name] = value
    return found


def command_of(attempt: Attempt, seat: Seat, logins: Sequence[mpi.Login]) -> tuple[str, ...]:
    """Return the command of the container that a seat is the first of."""
    spec = attempt.spec
    if spec.kind is not Kind.MPI:
        return program_words(spec)
    if seat.chief:
        # A worker has the variables that differ between nodes by itself: mpirun would pass on those of the first node.
        same = [setting.name for setting in _fabric(attempt) if not setting.nodes]
        given = tuple(dict.fromkeys((*same, *spec.env, *spec.secret_env)))
        return mpi.mpi_command(spec, given, sum(slots(spec, attempt.seats).values()))
    return mpi.sshd_command(next(login for login in logins if login.node == seat.node))


def containers_of(
    attempt: Attempt,
    node: str,
    logins: Sequence[mpi.Login],
    port: int,
    prepared: Prepared,
    mounts: Sequence[str],
) -> Iterator[dict[str, Any]]:
    """Yield what the keeper on a node is told of each of its containers or units: ``containers`` of README.md.

    Args:
        attempt: whose they are.
        node: where they are made.
        logins: ways by SSH between the containers of mpi.
        port: of the rendezvous, on the chief's node.
        prepared: what the node has answered to ``prepare``.
        mounts: ``/source:/target[:ro]`` of code and data.
    """
    spec = attempt.spec
    for name, inside in by_container([seat for seat in attempt.seats if seat.node == node]).items():
        seat = inside[0]
        waits = spec.kind is Kind.MPI and not seat.chief
        entry = command_of(attempt, seat, logins)
        yield {
            "name": name,
            "phase": 1 if waits else 2,
            **_runtime(attempt, inside, prepared, mounts, entry),
            "env": {**environment_of(attempt, seat, port), **attempt.secrets.env},
            "ready_port": next(login.port for login in logins if login.node == node) if waits else 0,
            "ready_address": seat.address,
            "log_instance": seat.instance,
            "instances": [one.instance for one in inside],
            "account": spec.user.partition(",")[0],
        }


def _runtime(
    attempt: Attempt, inside: Sequence[Seat], prepared: Prepared, mounts: Sequence[str], entry: Sequence[str]
) -> dict[str, Any]:
    """Return what the keeper is told of a container, or of a unit, as such."""
    spec, seat = attempt.spec, inside[0]
    hardware = attempt.known.hardware.get(seat.node, NodeHardware())
    if spec.no_container:
        unit = unit_of(spec, hardware=hardware, folder=attempt.folder, mounts=mounts, entry=entry)
        return {"unit": unit}
    reference = image_of(spec, seat)
    known = prepared.images.get(reference)
    image = known.id if known is not None and known.id else reference
    labels = {
        "provision.job": spec.name,
        "provision.id": attempt.id,
        "provision.attempt": str(attempt.number),
        "provision.instance": seat.instance,
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
