"""The data ports of a node (its rails), and their addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provision.facts.base import Unknown
from provision.facts.derived import data_address, plain
from provision.facts.node import NodeFacts
from provision.facts.rdma import RdmaDevice, RdmaPort

Network = ipaddress.IPv4Network


@dataclass(frozen=True)
class Endpoint:
    """One data port of a node."""

    node: str
    rail: str
    """Ports of one rail communicate: ``10.10.0.0/16 #2`` or, for InfiniBand, ``mlx5_2 port 1``."""
    device: str
    port: int
    address: str
    """The IPv4 address for the connection setup of two programs before they use RDMA."""
    gid_index: int | None
    """Index of the RoCE v2 GID of `address` in sysfs; None for InfiniBand, which needs none."""
    soft: bool
    """Whether the device is a software RDMA device."""
    line_rate_gbit: float | None
    """None for a software RDMA device, whose rate in sysfs is meaningless."""


@dataclass(frozen=True)
class NodeRails:
    """The data ports of one node."""

    endpoints: tuple[Endpoint, ...] = ()
    problems: tuple[str, ...] = ()
    """Ports of the data network that cannot carry data now, with the reason."""
    absent: str = ""
    """Why there are no ports: the node has no RDMA device, or none on the data network."""
    devices: tuple[str, ...] = ()
    """Names of the RDMA devices that were considered."""


def node_rails(name: str, variables: Mapping[str, Any], facts: NodeFacts) -> NodeRails:
    """Return the data ports of the node `name`.

    RoCE ports count if they have a RoCE v2 GID for an IPv4 address inside ``cluster_data_networks`` (else for
    ``cluster_data_address``, else for any address of the node); InfiniBand ports count if they are active. Devices in
    ``training_container_rdma_excluded`` never count, and software devices only if there are no others.
    """
    if isinstance(facts.rdma, Unknown):
        return NodeRails(problems=(f"its RDMA devices are unknown: {facts.rdma.reason}",))
    excluded = variables.get("training_container_rdma_excluded")
    candidates = [d for d in facts.rdma.devices if not (isinstance(excluded, list) and d.name in excluded)]
    devices = sorted([d for d in candidates if not d.soft] or candidates, key=lambda device: _natural(device.name))
    if not devices:
        return NodeRails(absent="it has no RDMA device")
    networks = _networks(variables, facts)
    endpoints: list[Endpoint] = []
    problems: list[str] = []
    _roce(name, devices, networks, endpoints, problems)
    _infiniband(name, devices, data_address(variables, facts), endpoints, problems)
    _without_gid(devices, networks, facts, problems)
    names = tuple(device.name for device in devices)
    absent = ""
    if not endpoints and not problems:
        where = ", ".join(map(str, networks)) or "no data network is known"
        absent = f"none of its RDMA devices ({', '.join(names)}) is on the data network ({where})"
    return NodeRails(tuple(endpoints), tuple(problems), absent, names)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _networks(variables: Mapping[str, Any], facts: NodeFacts) -> tuple[Network, ...]:
    configured = variables.get("cluster_data_networks")
    if isinstance(configured, list) and configured and plain(configured):
        return tuple(dict.fromkeys(filter(None, map(_network, configured))))
    addresses = () if isinstance(facts.addresses, Unknown) else facts.addresses
    chosen = variables.get("cluster_data_address")
    networks = [
        _network(f"{entry.address}/{entry.prefix}")
        for entry in addresses
        if entry.version == 4 and entry.scope == "global" and (not chosen or entry.address == chosen)  # noqa: PLR2004
    ]
    return tuple(dict.fromkeys(filter(None, networks)))


def _network(text: object) -> Network | None:
    try:
        return ipaddress.IPv4Network(str(text), strict=False)
    except ValueError:
        return None


def _inside(address: str, networks: tuple[Network, ...]) -> Network | None:
    return next((network for network in networks if address and ipaddress.IPv4Address(address) in network), None)


def _roce(
    name: str, devices: list[RdmaDevice], networks: tuple[Network, ...], endpoints: list[Endpoint], problems: list[str]
) -> None:
    """Number the ports of a network in device order. Ports that are down count, so that numbers match on all nodes."""
    counts: dict[Network, int] = {}
    for device, port in _ports(devices, "Ethernet"):
        gid = next((g for g in port.gids if g.routable_ipv4 and _inside(g.ipv4, networks)), None)
        network = _inside(gid.ipv4, networks) if gid else None
        if gid is None or network is None:
            continue
        counts[network] = counts.get(network, 0) + 1
        if not port.active:
            problems.append(_down(device, port))
            continue
        rail, rate = f"{network} #{counts[network]}", None if device.soft else port.line_rate_gbit
        endpoints.append(Endpoint(name, rail, device.name, port.number, gid.ipv4, gid.index, device.soft, rate))


def _infiniband(
    name: str, devices: list[RdmaDevice], address: str | None, endpoints: list[Endpoint], problems: list[str]
) -> None:
    ports = _ports(devices, "InfiniBand")
    active = [(device, port) for device, port in ports if port.active]
    if ports and not active:
        problems.append(f"no InfiniBand port is active: {', '.join(_down(d, p) for d, p in ports)}")
    if active and address is None:
        problems.append("it has no address on the data network for the connection setup of a test")
        return
    for device, port in active:
        rail = f"{device.name} port {port.number}"
        endpoints.append(
            Endpoint(name, rail, device.name, port.number, address or "", None, device.soft, port.line_rate_gbit)
        )


def _without_gid(
    devices: list[RdmaDevice],
    networks: tuple[Network, ...],
    facts: NodeFacts,
    problems: list[str],
) -> None:
    """Report ports whose interface has a data address without a GID."""
    addresses = () if isinstance(facts.addresses, Unknown) else facts.addresses
    address_of = {a.interface: a.address for a in addresses if a.version == 4 and _inside(a.address, networks)}  # noqa: PLR2004
    for device, port in _ports(devices, "Ethernet"):
        address = next((address_of[net] for net in device.netdevs if net in address_of), None)
        if address is None or any(g.routable_ipv4 and _inside(g.ipv4, networks) for g in port.gids):
            continue
        problems.append(
            f"{device.name} port {port.number} has no RoCE v2 GID of {address}" if port.active else _down(device, port)
        )


def _ports(devices: list[RdmaDevice], link_layer: str) -> list[tuple[RdmaDevice, RdmaPort]]:
    return [(device, port) for device in devices for port in device.ports if port.link_layer == link_layer]


def _down(device: RdmaDevice, port: RdmaPort) -> str:
    return f"{device.name} port {port.number} is {port.state or 'in an unknown state'}"
