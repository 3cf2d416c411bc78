"""The variables that NCCL needs on each fabric, by its version; what it finds out well by itself is left to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from provision.model import Setting
from provision.profiles.base import NodeNetwork, merged

__all__ = ["common_fabric", "finds_gid", "nccl_settings"]

_GID_BY_ITSELF = (2, 21)
"""From this version on NCCL looks for the RoCE v2 GID of an IPv4 address by itself."""


class _Variable(Protocol):
    def __call__(self, name: str, value: str, reason: str, decided: str = ...) -> Setting: ...


def finds_gid(version: str) -> bool:
    """Return whether this NCCL finds the right GID by itself; False where its version is not known."""
    found = re.match(r"(\d{1,9})\.(\d{1,9})", version)
    return bool(found) and (int(found[1]), int(found[2])) >= _GID_BY_ITSELF  # type: ignore[index]


def common_fabric(networks: Sequence[NodeNetwork], wanted: str = "") -> tuple[str, str]:
    """Return the fabric that all nodes can use, and why it is that one; empty when nobody can tell.

    `wanted` decides where it is given. Nodes of different fabrics meet over TCP.
    """
    if wanted:
        return wanted.removesuffix("-gdr"), "asked for"
    unknown = next((n for n in networks if not n.fabric), None)
    if unknown or not networks:
        return "", f"{unknown.node}: {unknown.why or 'its network is not known'}" if unknown else "there are no nodes"
    kinds = {network.fabric for network in networks}
    if len(kinds) == 1:
        return networks[0].fabric, networks[0].why
    slow = next((n for n in networks if n.fabric == "tcp"), None)
    if slow:
        return "tcp", f"{slow.node}: {slow.why or 'it has no RDMA'}, and all have to use the same"
    named = ", ".join(f"{n.node} has {n.fabric}" for n in _firsts(networks))
    return "tcp", f"InfiniBand and RoCE do not reach each other: {named}"


def _firsts(networks: Sequence[NodeNetwork]) -> list[NodeNetwork]:
    return [next(n for n in networks if n.fabric == kind) for kind in sorted({n.fabric for n in networks})]


def nccl_settings(networks: Sequence[NodeNetwork], wanted: str = "") -> tuple[Setting, ...]:
    """Return NCCL's variables for a job on these nodes; a variable whose value differs has one for each node.

    Args:
        networks: of the nodes that get ranks.
        wanted: a fabric of ``FABRICS``, to use in place of the one that the nodes have.
    """
    fabric, why = common_fabric(networks, wanted)
    gdr = True if wanted == "roce-gdr" else False if wanted == "roce" else None
    found = []
    for network in networks:
        settings = _of_node(network, fabric, why, use_gdr=network.gdr if gdr is None else gdr)
        found.append({setting.name: setting for setting in settings})
    return merged([network.node for network in networks], found)


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
        # With = it is this interface alone: without it, eth1 is eth10 too.
        yield variable("NCCL_SOCKET_IFNAME", f"={network.interface}", f"carries {carries}", network.source)
    if fabric == "roce":
        yield from _gid(network, variable)
    if fabric in {"roce", "ib"}:
        yield from _gpudirect(network, variable, use_gdr=use_gdr)


def _ports(network: NodeNetwork, fabric: str) -> tuple[str, ...]:
    """All ports; of RoCE ports those with the index that most have, where NCCL has to be told one for all."""
    if fabric != "roce" or not _needs_gid(network):
        return network.hcas
    return tuple(port for port in network.hcas if network.gids.get(port, network.gid_index) == network.gid_index)


def _about_ports(network: NodeNetwork, ports: tuple[str, ...]) -> str:
    left = [port for port in network.hcas if port not in ports]
    reason = "the RDMA ports on the data network; with = no other card whose name begins so"
    return f"{reason}; left out, their GID has another index: {', '.join(left)}" if left else reason


def _needs_gid(network: NodeNetwork) -> bool:
    return not finds_gid(network.nccl) or network.several_gids


def _gid(network: NodeNetwork, variable: _Variable) -> Iterator[Setting]:
    if network.gid_index is None or not _needs_gid(network):
        return
    if finds_gid(network.nccl):
        why = "a port has several RoCE v2 GIDs; this is the data address's"
    else:
        version = f"NCCL {network.nccl}" if network.nccl else "an NCCL before 2.21"
        why = f"{version} would take index 0; this is the RoCE v2 GID of the data address"
    yield variable("NCCL_IB_GID_INDEX", str(network.gid_index), why, network.source)


def _gpudirect(network: NodeNetwork, variable: _Variable, *, use_gdr: bool | None) -> Iterator[Setting]:
    """Levels go by name: what a number means changed with versions. Without a level NCCL allows what lies near."""
    if use_gdr is False:
        why = "data goes by the host's memory" if network.gdr else "the cards cannot reach GPU memory"
        yield variable("NCCL_NET_GDR_LEVEL", "LOC", why)
    elif network.dma_buf is not None and use_gdr:
        way = "DMA-BUF is the way to GPU memory" if network.dma_buf else "the network's half of DMA-BUF is missing"
        yield variable("NCCL_DMABUF_ENABLE", str(int(network.dma_buf)), way, network.source)
