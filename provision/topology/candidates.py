"""The machine model that GPU sets are scored on, and the node model that jobs are placed on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from provision.model import Topology
from provision.topology.faults import find_faults
from provision.topology.products import DEFAULT_LANE, DEFAULT_PCIE


class Mode(StrEnum):
    """The kind of jobs that a node accepts; a node has one mode."""

    DEFAULT = "default"
    TOPOLOGY = "topology"
    SHARE = "share"


@dataclass(frozen=True)
class Port:
    """A network card as a job uses it; rates are tenths of GB/s in one direction."""

    rate: int
    """0: the card is inactive or not used by jobs."""
    layer: str = ""
    """``InfiniBand`` or ``Ethernet``; empty if unknown. Cards with different link layers cannot communicate."""
    rail: str = ""
    """The rail of the card, in a fabric whose rails are not connected."""


@dataclass(frozen=True)
class Machine:
    """The properties that determine the scores of GPU sets; nodes with equal machines are scored once.

    Rates are tenths of GB/s in one direction.
    """

    topology: Topology
    lane: int = DEFAULT_LANE
    """Rate of one NVLink lane."""
    lanes: int | None = None
    """NVLink lanes per GPU of the product."""
    pcie: int = DEFAULT_PCIE
    """Rate of a PCIe slot, for GPUs and network cards."""
    inter_cpu: int | None = None
    """Rate between two sockets; None: not lower than that of PCIe."""
    ports: tuple[Port, ...] = ()
    """In the order of ``topology.nics``."""
    p2p: tuple[tuple[int, ...], ...] | None = None
    """Measured rates between GPUs, in the order of ``topology.gpus``; they replace the product's rates."""


@dataclass(frozen=True)
class Candidate:
    """A node that a job may be placed on."""

    name: str
    machine: Machine
    busy: frozenset[int] = frozenset()
    """Indices of GPUs that are in use."""
    faulty: frozenset[int] = frozenset()
    """Indices of GPUs that must not get jobs until their fault is fixed."""
    mig: frozenset[int] = frozenset()
    """Indices of GPUs in MIG mode, whose instances cannot be combined."""
    instances: Mapping[int, tuple[str, ...]] = field(default_factory=dict, compare=False)
    """UUIDs of the MIG instances by GPU index, as far as known."""
    mode: Mode | None = None
    """None: no mode is configured, and the node accepts jobs of every mode."""
    leaf: str = ""
    rack: str = ""
    domain: str = ""
    """The NVLink domain that connects GPUs of several nodes (``cluster_nvlink_domain``)."""


def faulty(topology: Topology) -> frozenset[int]:
    """Return the indices of the GPUs that the matrix shows to be faulty, e.g. not connected to the NVLink fabric."""
    return frozenset(index for fault in find_faults(topology) if fault.certain for index in fault.gpus)
