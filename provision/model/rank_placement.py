"""Which GPUs, network cards and CPUs each rank of a job gets; whoever chose them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["NodePlacement", "RankPlacement"]


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
