"""The network of a node for profiles, from its facts or from its inventory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.facts import NodeFacts, Unknown, data_interface, data_network, gpu_count, plain
from provision.facts.rails import Endpoint, node_rails
from provision.gdr.base import GdrPath
from provision.gdr.observed import missing_fact, oldest_nccl, verdict_of
from provision.profiles import NodeNetwork


def node_network(name: str, variables: Mapping[str, Any], facts: NodeFacts) -> NodeNetwork:
    """Return the network of the node `name` from its facts; interfaces and cards in the inventory take precedence."""
    rails = node_rails(name, variables, facts)
    fabric, why, used = _fabric(rails.endpoints)
    if isinstance(facts.rdma, Unknown):
        fabric, why = "", rails.problems[0]
    elif not rails.endpoints:
        fabric, why = "tcp", rails.absent or rails.problems[0]
    ports = {f"{end.device}:{end.port}": end for end in _stated_ports(used, variables)}
    verdict = verdict_of(facts)
    dma_buf = verdict.environment.get("NCCL_DMABUF_ENABLE")
    return NodeNetwork(
        name,
        fabric,
        gdr=None if missing_fact(facts) else verdict.path is not GdrPath.NONE,
        dma_buf=None if dma_buf is None else dma_buf == "1",
        gpus=gpu_count(facts) or 0,
        interface=_text(variables, "cluster_data_interface") or data_interface(variables, facts) or "",
        network=data_network(variables, facts) or "",
        management=_text(variables, "cluster_management_interface") or _default_interface(facts),
        hcas=tuple(ports),
        gids={port: end.gid_index for port, end in ports.items() if end.gid_index is not None},
        several_gids=_several_gids(facts, used),
        nccl=oldest_nccl(facts),
        why=why,
    )


def stated_network(name: str, variables: Mapping[str, Any]) -> NodeNetwork:
    """Return the network of a node from its inventory alone, without probing."""
    index, gpus = variables.get("cluster_gid_index"), variables.get("cluster_gpus")
    ports = tuple(_with_port(str(port)) for port in _list(variables, "cluster_hcas"))
    has_gid = isinstance(index, int) and not isinstance(index, bool) and index >= 0
    fabric = _text(variables, "cluster_fabric")
    return NodeNetwork(
        name,
        fabric.removesuffix("-gdr") or ("roce" if has_gid else ""),
        gdr=fabric == "roce-gdr" if fabric else None,
        gpus=gpus if isinstance(gpus, int) and not isinstance(gpus, bool) else 0,
        interface=_text(variables, "cluster_data_interface"),
        management=_text(variables, "cluster_management_interface"),
        hcas=ports,
        gids=dict.fromkeys(ports or ("",), index) if has_gid and isinstance(index, int) else {},
        nccl=_text(variables, "cluster_nccl"),
        why="set in the inventory"
        if fabric or has_gid
        else "the inventory sets neither cluster_fabric nor cluster_gid_index",
        source="inventory",
    )


def _fabric(endpoints: Sequence[Endpoint]) -> tuple[str, str, list[Endpoint]]:
    """Return the link layer of most ports, the reason, and these ports, because NCCL cannot mix link layers.

    Software devices are used only on request.
    """
    if endpoints and all(end.soft for end in endpoints):
        return "tcp", "it has only software RDMA devices, which are slower than TCP", list(endpoints)
    ib = [end for end in endpoints if end.gid_index is None]
    roce = [end for end in endpoints if end.gid_index is not None]
    if len(ib) >= len(roce):
        return "ib", f"{_count(ib)} InfiniBand", ib
    return "roce", f"{_count(roce)} RoCE", roce


def _count(endpoints: Sequence[Endpoint]) -> str:
    return f"{len(endpoints)} port{'s' * (len(endpoints) != 1)} of"


def _stated_ports(endpoints: Sequence[Endpoint], variables: Mapping[str, Any]) -> list[Endpoint]:
    requested = {str(port) for port in _list(variables, "cluster_hcas")}
    return [end for end in endpoints if not requested or requested & {end.device, f"{end.device}:{end.port}"}]


def _several_gids(facts: NodeFacts, used: Sequence[Endpoint]) -> bool:
    if isinstance(facts.rdma, Unknown):
        return False
    own_ports = {(end.device, end.port) for end in used}
    ports = ((device, port) for device in facts.rdma.devices for port in device.ports)
    return any(
        sum(gid.routable_ipv4 for gid in port.gids) > 1
        for device, port in ports
        if (device.name, port.number) in own_ports
    )


def _with_port(name: str) -> str:
    return name if ":" in name else f"{name}:1"


def _default_interface(facts: NodeFacts) -> str:
    if isinstance(facts.routes, Unknown):
        return ""
    return next((route.interface for route in facts.routes if route.destination == "default"), "")


def _text(variables: Mapping[str, Any], name: str) -> str:
    value = variables.get(name)
    return str(value) if isinstance(value, str | int | float) and plain(value) else ""


def _list(variables: Mapping[str, Any], name: str) -> list[Any]:
    value = variables.get(name)
    return value if isinstance(value, list) and plain(value) else []
