"""What is asked for, and where it goes."""

from __future__ import annotations

from dataclasses import dataclass

from provision.topology.candidates import Candidate, Mode
from provision.topology.score import UNLIMITED

__all__ = ["Key", "Placement", "Places", "Request", "Worker"]


@dataclass(frozen=True)
class Places:
    """The nodes that a job may be placed on, and what is to be said of them."""

    candidates: tuple[Candidate, ...]
    warnings: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    """Nodes that take no job now, and why."""
    lost: tuple[str, ...] = ()
    """Of those the ones that were not reached."""
    simulated: tuple[str, ...] = ()
    """Nodes whose GPUs are stand-ins of the lab."""


@dataclass(frozen=True)
class Request:
    """A job: so many workers, each with so many GPUs of one node."""

    gpus: int
    workers: int
    uniform: bool = False
    """Every node gives the same number of GPUs, as one ``--nproc-per-node`` for all wants it."""
    pack: bool = False
    """Use the fewest nodes, then leave the most useful GPUs to other jobs."""
    mode: Mode = Mode.DEFAULT
    """Only nodes of this mode, and those whose mode nobody has said."""
    most_per_node: int = 0
    """The most workers on one node; 0 for any number."""

    @property
    def total(self) -> int:
        """GPUs of all workers."""
        return self.gpus * self.workers

    @property
    def takes_mig(self) -> bool:
        """Whether a GPU in MIG mode will do: its instances are shared out, and no two of them can work together."""
        return self.mode is Mode.SHARE and self.total == 1


@dataclass(frozen=True)
class Key:
    """By what placements are compared; rates are tenths of GB/s."""

    bandwidth: int
    """Of the weakest node, inside or to the others; UNLIMITED for a single GPU."""
    nodes: int
    cross_leaf_hops: int
    """Steps from leaf switch to leaf switch along the ring of the nodes in rank order."""
    spread: int
    """Most GPUs of a node less the fewest."""
    pix_nics: int
    """GPUs with a network card of their own that is PIX; 0 on a single node, where none is needed."""
    near_nics: int
    """GPUs with a network card of their own that is PIX or PXB."""
    numa_nodes: int
    """Summed over the nodes."""
    lost: int
    """What the nodes could give to further jobs of the same size before, less what they can after."""
    numa_left: int
    """NUMA nodes of the best sets that stay free, after less before."""
    nodes_broken: int
    """Nodes that were wholly free."""
    free: int
    """GPUs that were free on the job's nodes."""
    weights: int
    """How well all pairs of GPUs are joined."""

    def order(self, *, pack: bool) -> tuple[int, ...]:
        """Return what is compared, weightiest first; less is better."""
        left_free = (self.lost, self.numa_left, self.nodes_broken, self.free)
        on_nodes = (self.spread, -self.pix_nics, -self.near_nics, self.numa_nodes)
        if pack:
            return (self.nodes, -self.bandwidth, self.cross_leaf_hops, *left_free, *on_nodes, -self.weights)
        return (-self.bandwidth, self.nodes, self.cross_leaf_hops, *on_nodes, *left_free, -self.weights)


@dataclass(frozen=True)
class Worker:
    """What one worker gets; workers stand in rank order."""

    node: str
    gpus: tuple[int, ...]
    """nvidia-smi's indices, ascending."""
    order: tuple[int, ...]
    """The same along their best ring: what the worker should see as its first GPU, its second and so on."""
    nics: tuple[str, ...]
    """The network cards that share a PCIe switch with one of them; else those of the job's other GPUs on the node."""
    mig: tuple[int, ...] = ()
    """Those that are in MIG mode: the worker gets one of their instances, by its UUID."""


@dataclass(frozen=True)
class Placement:
    """Where a job goes, or why it does not fit; then there are neither workers nor a key."""

    request: Request
    reason: str
    workers: tuple[Worker, ...] = ()
    key: Key | None = None
    leaves: tuple[str, ...] = ()
    """The leaf switch of each node, in rank order."""
    nodes: tuple[str, ...] = ()
    """In rank order."""
    runner_up: Placement | None = None
    """The next best, where it was asked for and there is one."""

    @property
    def fits(self) -> bool:
        """Whether there is room for all workers at once."""
        return self.key is not None

    @property
    def bandwidth(self) -> int | None:
        """The expected bus bandwidth in tenths of GB/s; None for a single GPU, which has none to expect."""
        return None if self.key is None or self.key.bandwidth >= UNLIMITED else self.key.bandwidth
