"""NCCL's variables for each fabric and NCCL version; values that NCCL detects well itself are not set."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from provision.model import Setting
from provision.profiles.base import NodeNetwork, merged

_GID_BY_ITSELF = (2, 21)
"""Since this version NCCL selects the RoCE v2 GID of an IPv4 address itself."""


class _Variable(Protocol):
    def __call__(self, name: str, value: str, reason: str, decided: str = ...) -> Setting: ...


def finds_gid(version: str) -> bool:
    """Return whether this NCCL selects the right GID itself; False if its version is unknown."""
    match = re.match(r"(\d{1,9})\.(\d{1,9})", version)
    return bool(match) and (int(match[1]), int(match[2])) >= _GID_BY_ITSELF  # type: ignore[index]


def common_fabric(networks: Sequence[NodeNetwork], wanted: str = "") -> tuple[str, str]:
    """Return the fabric that all nodes can use, and the reason; empty if unknown.

    `wanted` takes precedence. Nodes with different fabrics use TCP.
    """
    if wanted:
        return wanted.removesuffix("-gdr"), "requested"
    unknown = next((n for n in networks if not n.fabric), None)
    if unknown or not networks:
        return "", f"{unknown.node}: {unknown.why or 'its network is unknown'}" if unknown else "there are no nodes"
    kinds = {network.fabric for network in networks}
    if len(kinds) == 1:
        return networks[0].fabric, networks[0].why
    slow = next((n for n in networks if n.fabric == "tcp"), None)
    if slow:
        return "tcp", f"{slow.node}: {slow.why or 'it has no RDMA'}, and all nodes must use the same fabric"
    named = ", ".join(f"{n.node} has {n.fabric}" for n in _one_per_fabric(networks))
    return "tcp", f"InfiniBand and RoCE cannot communicate: {named}"


def _one_per_fabric(networks: Sequence[NodeNetwork]) -> list[NodeNetwork]:
    return [next(n for n in networks if n.fabric == kind) for kind in sorted({n.fabric for n in networks})]


def nccl_settings(networks: Sequence[NodeNetwork], wanted: str = "") -> tuple[Setting, ...]:
    """Return NCCL's variables for a job on these nodes; a variable that differs has a value for each node."""
    fabric, why = common_fabric(networks, wanted)
    gdr = True if wanted == "roce-gdr" else False if wanted == "roce" else None
    by_node = []
    for network in networks:
        settings = _of_node(network, fabric, why, use_gdr=network.gdr if gdr is None else gdr)
        by_node.append({setting.name: setting for setting in settings})
    return merged([network.node for network in networks], by_node)


def _of_node(network: NodeNetwork, fabric: str, why: str, *, use_gdr: bool | None) -> Iterator[Setting]:
    source = f"profile {fabric}{'-gdr' if fabric == 'roce' and use_gdr else ''}" if fabric else "profile"

    def variable(name: str, value: str, reason: str, decided: str = source) -> Setting:
        return Setting("-x", name, value, decided, reason)

    yield variable("NCCL_DEBUG", "WARN", "NCCL prints its warnings")
    if fabric == "tcp":
        yield variable("NCCL_IB_DISABLE", "1", f"over TCP: {why}")
    elif fabric:
        yield variable("NCCL_IB_DISABLE", "0", f"over RDMA: {why}")
    if fabric in {"roce", "ib"} and network.hcas:
        ports = _ports(network, fabric)
        yield variable("NCCL_IB_HCA", "=" + ",".join(ports), _about_ports(network, ports), network.source)
    if network.interface:
        carries = "data" if fabric == "tcp" else "the ranks' first contact"
        # "=" selects exactly this interface; without it, eth1 also matches eth10.
        yield variable("NCCL_SOCKET_IFNAME", f"={network.interface}", f"carries {carries}", network.source)
    if fabric == "roce":
        yield from _gid(network, variable)
    if fabric in {"roce", "ib"}:
        yield from _gpudirect(network, variable, use_gdr=use_gdr)


def _ports(network: NodeNetwork, fabric: str) -> tuple[str, ...]:
    """Return all ports; only those with the most common GID index if NCCL needs one index for all RoCE ports."""
    if fabric != "roce" or not _needs_gid(network):
        return network.hcas
    return tuple(port for port in network.hcas if network.gids.get(port, network.gid_index) == network.gid_index)


def _about_ports(network: NodeNetwork, ports: tuple[str, ...]) -> str:
    excluded = [port for port in network.hcas if port not in ports]
    reason = "the RDMA ports on the data network; = excludes cards with longer names"
    return f"{reason}; excluded because of another GID index: {', '.join(excluded)}" if excluded else reason


def _needs_gid(network: NodeNetwork) -> bool:
    return not finds_gid(network.nccl) or network.several_gids


def _gid(network: NodeNetwork, variable: _Variable) -> Iterator[Setting]:
    if network.gid_index is None or not _needs_gid(network):
        return
    if finds_gid(network.nccl):
        why = "a port has several RoCE v2 GIDs; this is the one of the data address"
    else:
        version = f"NCCL {network.nccl}" if network.nccl else "an NCCL before 2.21"
        why = f"{version} would use index 0; this is the RoCE v2 GID of the data address"
    yield variable("NCCL_IB_GID_INDEX", str(network.gid_index), why, network.source)


def _gpudirect(network: NodeNetwork, variable: _Variable, *, use_gdr: bool | None) -> Iterator[Setting]:
    """Yield the GPUDirect RDMA variables. Levels are names, because their numbers changed with NCCL versions."""
    if use_gdr is False:
        why = "data goes through host memory" if network.gdr else "the cards cannot access GPU memory"
        yield variable("NCCL_NET_GDR_LEVEL", "LOC", why)
    elif network.dma_buf is not None and use_gdr:
        why = "DMA-BUF is the path to GPU memory" if network.dma_buf else "the network does not support DMA-BUF"
        yield variable("NCCL_DMABUF_ENABLE", str(int(network.dma_buf)), why, network.source)
