"""The input of a profile: the network of each node of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from provision.model import Setting

FABRICS = ("tcp", "roce", "roce-gdr", "ib")
"""The fabrics that a job can request."""


@dataclass(frozen=True)
class NodeNetwork:
    """The network of one node, from its facts or from its inventory."""

    node: str
    fabric: str = ""
    """``tcp``, ``roce`` or ``ib``; empty if unknown."""
    gdr: bool | None = None
    """Whether its cards access GPU memory directly (GPUDirect RDMA); None if unknown."""
    dma_buf: bool | None = None
    """The required value of NCCL's DMA-BUF variable; None for NCCL's default."""
    gpus: int = 0
    interface: str = ""
    """The interface with its data address."""
    network: str = ""
    """The IPv4 network of its data address in CIDR notation; empty if unknown."""
    management: str = ""
    """The interface for SSH."""
    hcas: tuple[str, ...] = ()
    """The RDMA ports for data, as ``mlx5_0:1``."""
    gids: Mapping[str, int] = field(default_factory=dict)
    """RDMA port -> index of its RoCE v2 GID of the data address."""
    several_gids: bool = False
    """Whether a port has several RoCE v2 GIDs of IPv4 addresses, so that NCCL might select another one."""
    nccl: str = ""
    """The oldest NCCL that the job may use; empty if unknown."""
    why: str = ""
    """The reason for the fabric."""
    source: str = "node facts"

    @property
    def gid_index(self) -> int | None:
        """The index of most of its ports; None without a RoCE port."""
        indexes = list(self.gids.values())
        return max(sorted(set(indexes)), key=indexes.count) if indexes else None


def data_subnets(names: Iterable[str], networks: Mapping[str, NodeNetwork]) -> tuple[str, ...]:
    """Return the networks of all data addresses; none when one is not known, as the list would cut that node off."""
    subnets = [networks[name].network if name in networks else "" for name in names]
    return tuple(dict.fromkeys(subnets)) if all(subnets) else ()


def merged(nodes: Sequence[str], settings: Sequence[Mapping[str, Setting]]) -> tuple[Setting, ...]:
    """Return one list of variables for all nodes; a variable that differs has a value for each node.

    ``settings[i]`` are the variables of ``nodes[i]`` by name.
    """
    names = dict.fromkeys(name for by_name in settings for name in by_name)
    return tuple(_merged_setting(name, nodes, settings) for name in names)


def _merged_setting(name: str, nodes: Sequence[str], settings: Sequence[Mapping[str, Setting]]) -> Setting:
    given = {node: by_name[name] for node, by_name in zip(nodes, settings, strict=True) if name in by_name}
    first = next(iter(given.values()))
    if len(given) == len(nodes) and len({setting.value for setting in given.values()}) == 1:
        return first
    values = {node: setting.value or "" for node, setting in given.items()}
    return replace(first, value=None, nodes=values, reason=f"{first.reason}; differs between nodes")


def overridden(settings: Iterable[Setting], names: Iterable[str], source: str = "--env") -> tuple[Setting, ...]:
    """Return the settings with the variables `names` replaced by the user's; the user's other variables come last.

    The user's values never appear on the command line: variables are passed by name.
    """
    remaining = dict.fromkeys(names)
    result = []
    for setting in settings:
        if setting.is_variable and setting.name in remaining:
            del remaining[setting.name]
            default = setting.value if setting.value is not None else "a value for each node"
            reason = f"set by the user, instead of {default}"
            result.append(Setting("-x", setting.name, None, source, reason))
        else:
            result.append(setting)
    return (*result, *(Setting("-x", name, None, source, "set by the user") for name in remaining))
