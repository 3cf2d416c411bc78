"""How the GPUs and network cards of one node are linked, as `nvidia-smi topo -m` shows it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Topology", "TopologyGpu", "TopologyNic"]


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
