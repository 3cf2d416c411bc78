"""The nodes and GPUs that Slurm allocated to a job, and the places of its workers on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provision.batch.ranks import Place
from provision.documents.slurm_jobs import StepGpus
from provision.errors import LaunchError
from provision.jobs.engines.slurm.payload import PayloadNode
from provision.launchers import launcher_of
from provision.model.job import JobSpec
from provision.model.reason import reason
from provision.report.reasons import error_of
from provision.topology.candidates import Mode
from provision.topology.placement import Request
from provision.topology.select import place


def is_planned(spec: JobSpec) -> bool:
    """Return whether nodes and GPUs of a job are chosen at its submission."""
    return spec.gputopology and spec.gpus > 0


@dataclass(frozen=True)
class AllocatedNode:
    """A node of the allocation."""

    node: PayloadNode
    workers: int
    indices: tuple[int, ...] = ()
    """Indices of nvidia-smi of the allocated GPUs, in ascending order."""
    uuids: Mapping[int, str] | None = None
    """Index -> UUID of the allocated GPUs."""


def allocated_node(node: PayloadNode, workers: int, gpus: StepGpus) -> AllocatedNode:
    """Return a node with its GPUs, which Slurm names by minor number.

    Raises:
        LaunchError: the driver does not list one of them.
    """
    by_minor = {device.minor: device for device in gpus.devices}
    for minor in gpus.minors:
        if minor not in by_minor:
            raise error_of(LaunchError, reason("slurm.gpu_unknown", minor=minor, node_name=node.name), node=node.name)
    own = sorted((by_minor[minor] for minor in set(gpus.minors)), key=lambda device: device.index)
    return AllocatedNode(
        node, workers, tuple(device.index for device in own), {device.index: device.uuid for device in own}
    )


def may_fit(spec: JobSpec, nodes: Sequence[PayloadNode], count: int) -> bool:
    """Return whether a job could run on nodes if all of them were free; its last attempt had `count` nodes."""
    is_fixed = is_planned(spec) or (spec.gang and (spec.spread or launcher_of(spec.launcher).equal_slots))
    if len(nodes) < (count if is_fixed else 1):
        return False
    most = spec.max_per_node or spec.workers
    fit = [
        min(most, len(node.machine.gpus) // spec.gpus) if spec.gpus and node.machine is not None else most
        for node in nodes
    ]
    return sum(fit) >= (spec.workers if spec.gang else 1)


def places(spec: JobSpec, nodes: Sequence[AllocatedNode]) -> list[Place]:
    """Return the places of the workers in rank order; on each node, GPUs with good links are together.

    The first node stays first, because the batch script runs there. Slurm lists the others in the order of slurm.conf;
    here nodes of one leaf switch follow each other, so that a ring crosses the spine as rarely as possible.

    Raises:
        LaunchError: a node has fewer GPUs than its workers need.
    """
    leaves = list(dict.fromkeys(map(_leaf, nodes)))
    chosen_places: list[Place] = []
    for one in sorted(nodes, key=lambda one: leaves.index(_leaf(one))):
        chosen_places += _places_of(spec, one)
    return chosen_places


def _leaf(one: AllocatedNode) -> str:
    """Return the leaf switch of a node, or its rack; empty if it is unknown."""
    return one.node.machine.leaf or one.node.machine.rack if one.node.machine is not None else ""


def _places_of(spec: JobSpec, one: AllocatedNode) -> list[Place]:
    name, address, uuids = one.node.name, one.node.address, one.uuids or {}
    if not spec.gpus:
        return [Place(name, address) for _ in range(one.workers)]
    if len(one.indices) < spec.gpus * one.workers:
        why = reason("slurm.gpus_missing", count=len(one.indices), node_name=name, workers=one.workers, gpus=spec.gpus)
        raise error_of(LaunchError, why, node=name)
    chosen = _by_links(spec, one)
    return [Place(name, address, gpus, tuple(uuids[index] for index in gpus), nics) for gpus, nics in chosen]


def _by_links(spec: JobSpec, one: AllocatedNode) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Return GPUs and network cards of each worker of a node; without a known topology, the GPUs in their order."""
    machine = one.node.machine
    every = {gpu.index for gpu in machine.gpus} if machine is not None else set()
    if machine is not None and every.issuperset(one.indices):
        candidate = machine.candidate(one.node.name, frozenset(every.difference(one.indices)))
        placement = place([candidate], Request(spec.gpus, one.workers, mode=candidate.mode or Mode.DEFAULT))
        if placement.fits:
            return [(tuple(worker.order or worker.gpus), tuple(worker.nics)) for worker in placement.workers]
    return [(one.indices[first : first + spec.gpus], ()) for first in range(0, spec.gpus * one.workers, spec.gpus)]
