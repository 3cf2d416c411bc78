"""What a profile is made from: how each node of a job is connected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from provision.model import Setting

__all__ = ["FABRICS", "NodeNetwork", "merged", "overridden"]

FABRICS = ("tcp", "roce", "roce-gdr", "ib")
"""What a job can be told to send over."""


@dataclass(frozen=True)
class NodeNetwork:
    """How one node is connected, from its facts or as its inventory states it."""

    node: str
    fabric: str = ""
    """``tcp``, ``roce`` or ``ib``; empty when nobody can tell."""
    gdr: bool | None = None
    """Whether its cards reach GPU memory by themselves (GPUDirect RDMA); None when nobody can tell."""
    dma_buf: bool | None = None
    """What NCCL has to be told about DMA-BUF; None: nothing."""
    gpus: int = 0
    interface: str = ""
    """The interface that carries its data address."""
    network: str = ""
    """The IPv4 network of its data address, as a CIDR; empty when nobody can tell."""
    management: str = ""
    """The interface that logins come by."""
    hcas: tuple[str, ...] = ()
    """The RDMA ports that carry data, as ``mlx5_0:1``."""
    gids: Mapping[str, int] = field(default_factory=dict)
    """RDMA port -> index of its RoCE v2 GID of the data address."""
    several_gids: bool = False
    """Whether a port has more than one RoCE v2 GID of an IPv4 address, so that a choice by NCCL may be another."""
    nccl: str = ""
    """The oldest NCCL that the job may use; empty: not known."""
    why: str = ""
    """Why the fabric is this one."""
    source: str = "node facts"

    @property
    def gid_index(self) -> int | None:
        """The index that most of its ports have; None without a RoCE port."""
        indexes = list(self.gids.values())
        return max(sorted(set(indexes)), key=indexes.count) if indexes else None


def merged(nodes: Sequence[str], settings: Sequence[Mapping[str, Setting]]) -> tuple[Setting, ...]:
    """Return one list of variables for all nodes; a variable that differs has its values by node.

    ``settings[i]`` are the variables of ``nodes[i]`` by name.
    """
    names = dict.fromkeys(name for found in settings for name in found)
    return tuple(_one(name, nodes, settings) for name in names)


def _one(name: str, nodes: Sequence[str], settings: Sequence[Mapping[str, Setting]]) -> Setting:
    given = {node: found[name] for node, found in zip(nodes, settings, strict=True) if name in found}
    first = next(iter(given.values()))
    if len(given) == len(nodes) and len({setting.value for setting in given.values()}) == 1:
        return first
    values = {node: setting.value or "" for node, setting in given.items()}
    return replace(first, value=None, nodes=values, reason=f"{first.reason}; nodes differ, each gets its own")


def overridden(settings: Iterable[Setting], names: Iterable[str], source: str = "--env") -> tuple[Setting, ...]:
    """Return the variables with those of `names` as the user gave them; others that the user gave come last.

    Values of the user never stand on the command line: they are passed on by name.
    """
    wanted = dict.fromkeys(names)
    taken = []
    for setting in settings:
        if setting.is_variable and setting.name in wanted:
            del wanted[setting.name]
            instead = setting.value if setting.value is not None else "a value for each node"
            reason = f"given by you, in place of {instead}"
            taken.append(Setting("-x", setting.name, None, source, reason))
        else:
            taken.append(setting)
    return (*taken, *(Setting("-x", name, None, source, "given by you") for name in wanted))
