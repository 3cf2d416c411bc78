"""GPUs and network cards of a node, and the ranks that get them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["NodePlacement", "RankPlacement", "Topology", "TopologyGpu", "TopologyNic"]


@dataclass(frozen=True)
class TopologyGpu:
    """A row of the matrix that is a GPU."""

    index: int
    """The index that `nvidia-smi` gives it, which may have gaps."""
    numa: int | None = None
    cpus: tuple[str, ...] = ()
    """CPU affinity as printed, cut at commas: ``("0-19", "40-59")``; empty where nothing is said."""


@dataclass(frozen=True)
class TopologyNic:
    """A column of the matrix that is a network card."""

    name: str
    """The RDMA device's name (``mlx5_0``), taken from the legend where the column says NIC0."""
    numa: int | None = None


@dataclass(frozen=True)
class Topology:
    """A node's matrix: `links` is square over the GPUs, then the network cards, ``X`` on the diagonal.

    Link classes are the current tool's: ``NV#`` (# NVLink lanes), PIX, PXB, PHB, NODE, SYS; an old SOC is SYS.
    """

    gpus: tuple[TopologyGpu, ...]
    nics: tuple[TopologyNic, ...] = ()
    links: tuple[tuple[str, ...], ...] = ()
    warnings: tuple[str, ...] = ()
    """What was repaired or is odd about the matrix, for a person."""


@dataclass(frozen=True)
class RankPlacement:
    """What one rank gets of its node; what is empty is left as it is."""

    gpus: tuple[str, ...] = ()
    """UUIDs, or indices as `nvidia-smi` numbers them."""
    nics: tuple[str, ...] = ()
    """RDMA ports, as ``mlx5_0:1`` or ``mlx5_0``."""
    cpus: tuple[int, ...] = ()
    """Numbers as the operating system has them."""
    numa: int | None = None
    """The NUMA node that its memory should come from."""
    gid_index: int | None = None
    """Index of the RoCE v2 GID of its network cards; None: the node's, or none."""


@dataclass(frozen=True)
class NodePlacement:
    """The ranks of one node, in the order of their local ranks."""

    node: str
    address: str = ""
    """Its data address, by which a rank finds out where it is."""
    ranks: tuple[RankPlacement, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of every rank there."""
