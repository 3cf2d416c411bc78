"""Problems of NCCL's variables that a user sets, according to the facts of the nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.checks.launch_scene import LaunchFinding, LaunchScene, data_interface, few, interfaces
from provision.facts import NodeFacts, Unknown
from provision.facts.rdma import Gid, RdmaPort
from provision.profiles import NodeNetwork, finds_gid


def _socket_interfaces(scene: LaunchScene) -> Iterator[LaunchFinding]:
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = scene.variables.get(name, "")
        for node, facts in scene.facts.items() if value else ():
            there = interfaces(facts)
            if there and not any(_matches(value, interface) for interface in there):
                yield LaunchFinding(
                    f"{name}={value}",
                    f"{node} has {few(sorted(there))}",
                    f"Leave it out: each node then gets its own; {data_interface(scene, node)}",
                    fails=True,
                )


def _rdma_off(scene: LaunchScene) -> Iterator[LaunchFinding]:
    if scene.variables.get("NCCL_IB_DISABLE") != "1":
        return
    with_rdma = [network for network in scene.networks.values() if network.fabric in {"roce", "ib"}]
    if with_rdma:
        evidence = "; ".join(f"{network.node} has {', '.join(network.hcas)}" for network in with_rdma[:4])
        yield LaunchFinding(
            "NCCL_IB_DISABLE=1 sends everything over TCP",
            evidence,
            "Leave it out, or use --fabric tcp if that is meant.",
        )


def _fabric(scene: LaunchScene) -> Iterator[LaunchFinding]:
    wanted = scene.fabric.removesuffix("-gdr")
    for network in scene.networks.values():
        if wanted in {"roce", "ib"} and network.fabric and network.fabric != wanted:
            yield LaunchFinding(
                f"--fabric {scene.fabric}",
                f"{network.node} cannot: it has {network.fabric} ({network.why})",
                "Leave --fabric out, or the node (--limit).",
                fails=True,
            )
        elif scene.fabric == "roce-gdr" and network.gdr is False:
            yield LaunchFinding(
                "--fabric roce-gdr",
                f"on {network.node} no card reaches GPU memory",
                f"`provision gdr --limit {network.node}` says what is missing.",
            )


def _unused_cards(scene: LaunchScene) -> Iterator[LaunchFinding]:
    """A job that quietly goes over TCP though the node has cards costs days."""
    for node, facts in scene.facts.items():
        network = scene.networks.get(node)
        if network is None or network.fabric != "tcp" or isinstance(facts.rdma, Unknown) or scene.fabric == "tcp":
            continue
        cards = [device.name for device in facts.rdma.devices if not device.soft]
        if cards and network.gpus:
            yield LaunchFinding(
                f"{node} has RDMA cards and the job goes over TCP",
                f"{few(cards)}; {network.why}",
                f"`provision verify --limit {node}` says what is wrong with them.",
            )


def _cards(scene: LaunchScene) -> Iterator[LaunchFinding]:
    value = scene.variables.get("NCCL_IB_HCA", "")
    sign = "^" if value.startswith("^") else ""
    exact = value.removeprefix("^").startswith("=")
    words = [word for word in value.removeprefix("^").removeprefix("=").split(",") if word]
    for node, facts in scene.facts.items() if words else ():
        if isinstance(facts.rdma, Unknown) or not facts.rdma.devices:
            continue
        names = [device.name for device in facts.rdma.devices]
        wanted = {word.partition(":")[0] for word in words}
        more = [name for name in names if name not in wanted and any(name.startswith(word) for word in wanted)]
        if more and not exact:
            yield LaunchFinding(
                f"NCCL_IB_HCA={value} matches more than it names",
                f"on {node} also {few(more)}: without = each name is a beginning",
                f"Write NCCL_IB_HCA={sign}={','.join(words)}",
            )
        missing = [word for word in sorted(wanted) if not any(_card_matches(word, name, exact) for name in names)]
        if missing and not sign:
            yield LaunchFinding(
                f"NCCL_IB_HCA={value}",
                f"{node} has no {few(missing)}, only {few(names)}; without a card NCCL goes over TCP",
                "Leave it out: each node then gets its own cards.",
            )


def _card_matches(word: str, name: str, exact: bool) -> bool:  # noqa: FBT001
    return name == word if exact else name.startswith(word)


def _gids(scene: LaunchScene) -> Iterator[LaunchFinding]:
    value = scene.variables.get("NCCL_IB_GID_INDEX")
    if value is None:
        return
    if not re.fullmatch(r"-1|\d{1,4}", value, re.ASCII):
        yield LaunchFinding(f"NCCL_IB_GID_INDEX={value}", "this is no index", "Leave it out.", fails=True)
        return
    for node, facts in scene.facts.items():
        network = scene.networks.get(node)
        if network is None or network.fabric != "roce":
            continue
        for name, port in _used_ports(facts, network):
            yield from _gid_of_port(f"{node} {name}", int(value), port, network)


def _gid_of_port(where: str, index: int, port: RdmaPort, network: NodeNetwork) -> Iterator[LaunchFinding]:
    right = network.gid_index
    remedy = f"Leave it out: each node then gets its own (here {right})."
    if index < 0:
        if not finds_gid(network.nccl):
            version = f"NCCL {network.nccl}" if network.nccl else "NCCL before 2.21"
            yield LaunchFinding("NCCL_IB_GID_INDEX=-1", f"{version} finds no GID by itself", remedy)
        return
    gid: Gid | None = next((gid for gid in port.gids if gid.index == index), None)
    if gid is None:
        listed = ", ".join(f"{gid.index} ({gid.type or 'no type'})" for gid in port.gids)
        yield LaunchFinding(f"NCCL_IB_GID_INDEX={index}", f"{where} has {listed or 'no GID'}", remedy, fails=True)
    elif not gid.routable_ipv4:
        kind = f"{gid.type or 'of no known type'}, {gid.gid}"
        yield LaunchFinding(
            f"NCCL_IB_GID_INDEX={index}", f"on {where} that is {kind}: no other subnet is reached", remedy
        )
    elif network.gids and index != right:
        evidence = f"on {where} that is the GID of {gid.ipv4} on {gid.netdev}, not of the data address"
        yield LaunchFinding(f"NCCL_IB_GID_INDEX={index}", evidence, remedy)


def _used_ports(facts: NodeFacts, network: NodeNetwork) -> Iterator[tuple[str, RdmaPort]]:
    for device in () if isinstance(facts.rdma, Unknown) else facts.rdma.devices:
        for port in device.ports:
            if f"{device.name}:{port.number}" in network.hcas:
                yield f"{device.name}:{port.number}", port


def _levels(scene: LaunchScene) -> Iterator[LaunchFinding]:
    for name in ("NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL"):
        value = scene.variables.get(name, "")
        if value.isdecimal() and value != "0":
            yield LaunchFinding(
                f"{name}={value}",
                "what a number means changed with NCCL's versions",
                f"Write LOC, PIX, PXB, PHB or SYS, or leave {name} out.",
            )


def _matches(pattern: str, interface: str) -> bool:
    """NCCL's rule: names are beginnings unless = stands first; ^ turns the list round."""
    excluding = pattern.startswith("^")
    rest = pattern.removeprefix("^")
    exact = rest.startswith("=")
    words = [word for word in rest.removeprefix("=").split(",") if word]
    hit = any(interface == word if exact else interface.startswith(word) for word in words)
    return hit != excluding


NCCL_JUDGES = (_socket_interfaces, _rdma_off, _fabric, _unused_cards, _cards, _gids, _levels)
