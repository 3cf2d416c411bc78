"""GPUs and network cards of a node, and their assignment to ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from provision.model.reason import Reason


@dataclass(frozen=True)
class TopologyGpu:
    """A GPU in the topology matrix."""

    index: int
    """Index of `nvidia-smi`; indices can have gaps."""
    numa: int | None = None
    cpus: tuple[str, ...] = ()
    """CPU affinity as printed, split at commas: ``("0-19", "40-59")``; empty if it is not printed."""


@dataclass(frozen=True)
class TopologyNic:
    """A network card in the topology matrix."""

    name: str
    """Name of the RDMA device (``mlx5_0``), from the legend if the column is named NIC0."""
    numa: int | None = None


@dataclass(frozen=True)
class Topology:
    """Topology matrix of a node. `links` is a square over the GPUs, then the network cards, with ``X`` on the diagonal.

    Link classes are those of current versions: ``NV#`` (# NVLink lanes), PIX, PXB, PHB, NODE, SYS. An old SOC is SYS.
    """

    gpus: tuple[TopologyGpu, ...]
    nics: tuple[TopologyNic, ...] = ()
    links: tuple[tuple[str, ...], ...] = ()
    warnings: tuple[Reason, ...] = ()
    """Corrections and irregularities of the matrix."""


@dataclass(frozen=True)
class RankPlacement:
    """Resources of one rank on its node. Empty fields are not set."""

    gpus: tuple[str, ...] = ()
    """UUIDs, or indices of `nvidia-smi`."""
    nics: tuple[str, ...] = ()
    """RDMA ports: ``mlx5_0:1`` or ``mlx5_0``."""
    cpus: tuple[int, ...] = ()
    """CPU numbers of the operating system."""
    numa: int | None = None
    """NUMA node from which its memory is allocated."""
    gid_index: int | None = None
    """Index of the RoCE v2 GID of its network cards; None for the node's index, or none."""


@dataclass(frozen=True)
class NodePlacement:
    """The ranks of one node, in the order of their local ranks."""

    node: str
    address: str = ""
    """Data address, by which a rank identifies its node."""
    ranks: tuple[RankPlacement, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of all ranks on the node."""
