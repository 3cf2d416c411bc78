"""A machine as the score of its GPUs sees it, and a node of the cluster as the choice sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from provision.model import Topology
from provision.topology.faults import find_faults
from provision.topology.products import DEFAULT_LANE, DEFAULT_PCIE

__all__ = ["Candidate", "Machine", "Mode", "Port", "faulty"]


class Mode(StrEnum):
    """To which jobs a node gives its GPUs; a node has one mode."""

    DEFAULT = "default"
    TOPOLOGY = "topology"
    SHARE = "share"


@dataclass(frozen=True)
class Port:
    """What a network card can do for a job; rates are tenths of GB/s, one way."""

    rate: int
    """0: the card is not active, or not for jobs."""
    layer: str = ""
    """``InfiniBand`` or ``Ethernet``; empty where nobody knows. Cards of different layers do not talk to each other."""
    rail: str = ""
    """The network that the card is on, in a fabric in which cards of different rails do not meet."""


@dataclass(frozen=True)
class Machine:
    """All that the scores of its sets of GPUs depend on; nodes with equal machines are scored once.

    Rates are tenths of GB/s, one way.
    """

    topology: Topology
    lane: int = DEFAULT_LANE
    """One NVLink lane."""
    lanes: int | None = None
    """NVLink lanes of a GPU, by its product."""
    pcie: int = DEFAULT_PCIE
    """A slot, of GPUs and cards alike."""
    inter_cpu: int | None = None
    """Between two sockets; None: no less than PCIe gets."""
    ports: tuple[Port, ...] = ()
    """In the order of ``topology.nics``."""
    p2p: tuple[tuple[int, ...], ...] | None = None
    """Measured between GPUs, in the order of ``topology.gpus``; it replaces the products' figures."""


@dataclass(frozen=True)
class Candidate:
    """A node that a job may be placed on."""

    name: str
    machine: Machine
    busy: frozenset[int] = frozenset()
    """Indices of GPUs that are in use."""
    faulty: frozenset[int] = frozenset()
    """Indices of GPUs that no job should get before their node is mended."""
    mig: frozenset[int] = frozenset()
    """Indices of GPUs that are cut into MIG instances, which no two of can work together."""
    instances: Mapping[int, tuple[str, ...]] = field(default_factory=dict, compare=False)
    """Of these the UUIDs of the instances, as far as they are known."""
    mode: Mode | None = None
    """None: nobody has said, and the node is there for every kind of job."""
    leaf: str = ""
    rack: str = ""
    domain: str = ""
    """The NVLink domain that joins this node's GPUs with other nodes' (``cluster_nvlink_domain``)."""


def faulty(topology: Topology) -> frozenset[int]:
    """Return the indices of the GPUs that the matrix shows to be out of order, such as those off the NVLink fabric."""
    return frozenset(index for fault in find_faults(topology) if fault.certain for index in fault.gpus)
