"""Requests for GPUs, and their placements."""

from __future__ import annotations

from dataclasses import dataclass

from provision.model.reason import Reason
from provision.topology.candidates import Candidate, Mode
from provision.topology.score import UNLIMITED


@dataclass(frozen=True)
class Places:
    """The nodes that a job may be placed on, with warnings about them."""

    candidates: tuple[Candidate, ...]
    warnings: tuple[str, ...] = ()
    left_out: tuple[tuple[str, Reason], ...] = ()
    """Nodes that accept no job now, and the reason."""
    lost: tuple[str, ...] = ()
    """The excluded nodes that were unreachable."""
    simulated: tuple[str, ...] = ()
    """Nodes with SIMULATED GPUs of the lab."""


@dataclass(frozen=True)
class Request:
    """A job: a number of workers, each with a number of GPUs of one node."""

    gpus: int
    workers: int
    uniform: bool = False
    """Every node gives the same number of GPUs, as a single ``--nproc-per-node`` requires."""
    pack: bool = False
    """Use the fewest nodes, then preserve the most useful GPUs for other jobs."""
    mode: Mode = Mode.DEFAULT
    """Use only nodes of this mode and those without a configured mode."""
    most_per_node: int = 0
    """The most workers on one node; 0 for any number."""

    @property
    def total(self) -> int:
        """Return the number of GPUs of all workers."""
        return self.gpus * self.workers

    @property
    def takes_mig(self) -> bool:
        """Return whether the job can use one instance of a GPU in MIG mode; instances cannot be combined."""
        return self.mode is Mode.SHARE and self.total == 1


@dataclass(frozen=True)
class Key:
    """The criteria by which placements are compared; rates are tenths of GB/s."""

    bandwidth: int
    """Of the slowest node, inside or to the others; UNLIMITED for a single GPU."""
    nodes: int
    cross_leaf_hops: int
    """Changes of leaf switch along the ring of the nodes in rank order."""
    spread: int
    """Highest minus lowest number of GPUs per node."""
    pix_nics: int
    """GPUs with a network card of their own at PIX; 0 on a single node, which needs none."""
    near_nics: int
    """GPUs with a network card of their own at PIX or PXB."""
    numa_nodes: int
    """Summed over the nodes."""
    lost: int
    """Value of the nodes to further jobs of the same size, before minus after."""
    numa_left: int
    """NUMA nodes of the best remaining sets, after minus before."""
    nodes_broken: int
    """Nodes that were completely free."""
    free: int
    """Free GPUs of the job's nodes before the job."""
    weights: int
    """Sum of the link weights of all pairs of GPUs."""

    def order(self, *, pack: bool) -> tuple[int, ...]:
        """Return the criteria in order of importance; less is better."""
        left_free = (self.lost, self.numa_left, self.nodes_broken, self.free)
        on_nodes = (self.spread, -self.pix_nics, -self.near_nics, self.numa_nodes)
        if pack:
            return (self.nodes, -self.bandwidth, self.cross_leaf_hops, *left_free, *on_nodes, -self.weights)
        return (-self.bandwidth, self.nodes, self.cross_leaf_hops, *on_nodes, *left_free, -self.weights)


@dataclass(frozen=True)
class Worker:
    """The GPUs and cards of one worker; workers are in rank order."""

    node: str
    gpus: tuple[int, ...]
    """nvidia-smi's indices, ascending."""
    order: tuple[int, ...]
    """The same GPUs along their best ring, the order in which the worker should number them."""
    nics: tuple[str, ...]
    """The network cards that share a PCIe switch with a GPU of the worker, else with a GPU of the job on the node."""
    mig: tuple[int, ...] = ()
    """The GPUs in MIG mode; the worker gets one instance of each, by UUID."""


@dataclass(frozen=True)
class Placement:
    """The nodes and GPUs of a job, or the reason why it does not fit; then it has neither workers nor a key."""

    request: Request
    reason: Reason
    workers: tuple[Worker, ...] = ()
    key: Key | None = None
    leaves: tuple[str, ...] = ()
    """The leaf switch of each node, in rank order."""
    nodes: tuple[str, ...] = ()
    """In rank order."""
    runner_up: Placement | None = None
    """The next best placement, if requested and available."""

    @property
    def fits(self) -> bool:
        """Return whether all workers can be placed at once."""
        return self.key is not None

    @property
    def bandwidth(self) -> int | None:
        """Return the expected bus bandwidth in tenths of GB/s; None for a single GPU, which has none."""
        return None if self.key is None or self.key.bandwidth >= UNLIMITED else self.key.bandwidth
