"""Values derived from facts and the inventory together: slots, the data address, the kind of node."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

from provision.facts.address_claims import Claim, address_problem, refused_claims
from provision.facts.base import Unknown
from provision.facts.container import Container
from provision.facts.network import Address
from provision.facts.node import NodeFacts
from provision.facts.outputs import Outputs
from provision.facts.probe_request import Parameters
from provision.facts.system import NodeKind
from provision.model import Node

SYSTEM = "system"
"""The simulated component that is the operating system."""


def gpu_count(facts: NodeFacts) -> int | None:
    """Return the number of usable GPUs; None if nvidia-smi hung, failed, or lists fewer GPUs than the PCI bus."""
    if isinstance(facts.gpus, Unknown):
        return None
    on_bus = 0 if isinstance(facts.gpu_pci, Unknown) else len(facts.gpu_pci)
    return None if len(facts.gpus) < on_bus else len(facts.gpus)


def is_container(facts: NodeFacts) -> bool:
    """Return whether the node is a container, whose modules and sysctls belong to its host."""
    return not isinstance(facts.kind, Unknown) and facts.kind.kind is NodeKind.CONTAINER


def running_container(facts: NodeFacts) -> bool:
    """Return whether the training container is running."""
    return isinstance(facts.container, Container) and facts.container.running


def parameters(
    variables: Mapping[str, Any], names: Sequence[str], outputs: Outputs | None = None, *, topology: bool = False
) -> Parameters:
    """Return the parameters of a node's probe, from its variables with the roles' defaults."""
    reference = _text(variables, "training_image_reference")
    digest = _text(variables, "training_image_digest")
    repository = reference.partition("@")[0]
    if ":" in repository.rpartition("/")[2]:
        repository = repository.rpartition(":")[0]
    pinned = f"{repository}@{digest}" if reference and digest else ""
    sysctls = variables.get("base_system_sysctls")
    paths = dict.fromkeys((*Parameters().paths, _text(variables, "docker_engine_data_root") or "/var/lib/docker"))
    return Parameters(
        names=tuple(names),
        container=_text(variables, "training_container_name") or "provision-training",
        images=tuple(image for image in (pinned, reference) if image),
        sysctls=tuple(sysctls) if isinstance(sysctls, Mapping) else (),
        paths=tuple(paths),
        mounts=mounts(variables),
        topology=topology,
        known=outputs.digests() if outputs else (),
    )


def mounts(variables: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths of a node that its training container and its jobs mount, by the inventory."""
    own, volumes = variables.get("training_container_mounts"), variables.get("cluster_data")
    sources = [str(mount).partition(":")[0] for mount in own] if isinstance(own, list) else []
    entries = volumes.values() if isinstance(volumes, Mapping) else ()
    sources += [str(entry["path"]) for entry in entries if isinstance(entry, Mapping) and "path" in entry]
    return tuple(dict.fromkeys(path for path in sources if re.fullmatch(r"/[A-Za-z0-9._/+@-]{0,200}", path)))


def _text(variables: Mapping[str, Any], name: str) -> str:
    value = variables.get(name)
    return value if isinstance(value, str) and plain(value) else ""


def simulated(facts: NodeFacts, *prefixes: str) -> bool:
    """Return whether the node simulates a component whose name starts with one of `prefixes`."""
    if isinstance(facts.simulated, Unknown):
        return False
    return any(name.startswith(prefixes) for name in facts.simulated)


def system_label(facts: NodeFacts, name: str = "") -> str:
    """Return the name of a node's system, marked if the lab only simulates it; empty if the system is unknown.

    Args:
        facts: the facts of the node.
        name: the name. Default: the name by which the roles support the system.
    """
    if isinstance(facts.system, Unknown):
        return ""
    return f"{name or facts.system.name}{' (SIMULATED)' if simulated(facts, SYSTEM) else ''}"


def plain(value: Any) -> bool:
    """Return whether an inventory value contains no Jinja, which only Ansible can resolve."""
    if isinstance(value, str):
        return "{{" not in value and "{%" not in value
    if isinstance(value, Mapping):
        return all(plain(item) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple):
        return all(plain(item) for item in value)
    return True


def proxies(variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the inventory's proxies as environment variables, without values that contain Jinja."""
    http, https = variables.get("cluster_http_proxy"), variables.get("cluster_https_proxy")
    values = {"http_proxy": http, "https_proxy": https or http, "no_proxy": variables.get("cluster_no_proxy")}
    return {name: str(value) for name, value in values.items() if value and plain(value)}


def data_address(variables: Mapping[str, Any], facts: NodeFacts | None) -> str | None:
    """Return a node's address on the data network; None if it is unknown or invalid.

    ``cluster_data_address`` takes precedence; then the node's first address inside ``cluster_data_networks``; then
    the address of its default route. `refused_addresses` compares the addresses of all nodes.
    """
    stated = _stated_address(variables)
    if stated:
        return stated
    address = _claimed_address(variables, facts)
    return None if not address or address_problem(address, networks=_networks(variables)) else address


def refused_addresses(nodes: Sequence[Node], facts: Mapping[str, Any]) -> dict[str, str]:
    """Return node -> reason for every node whose data address belongs, or may belong, to another node."""
    claims: dict[str, Claim] = {}
    for node in nodes:
        stated, node_facts = _stated_address(node.variables), facts.get(node.name)
        claimed = (
            None if stated or not isinstance(node_facts, NodeFacts) else _claimed_address(node.variables, node_facts)
        )
        claims[node.name] = Claim(claimed or "", stated, node.connection.host, _networks(node.variables))
    refused = refused_claims(claims)
    return {name: f"its data address is refused: {reason}" for name, reason in refused.items()}


def _stated_address(variables: Mapping[str, Any]) -> str:
    stated = variables.get("cluster_data_address")
    return stated if isinstance(stated, str) and plain(stated) else ""


def _networks(variables: Mapping[str, Any]) -> list[str]:
    networks = variables.get("cluster_data_networks")
    return [text for text in networks if _is_network(text)] if isinstance(networks, list) else []


def _is_network(text: object) -> bool:
    try:
        ipaddress.ip_network(str(text), strict=False)
    except ValueError:
        return False
    return isinstance(text, str)


def _claimed_address(variables: Mapping[str, Any], facts: NodeFacts | None) -> str | None:
    if facts is None or isinstance(facts.addresses, Unknown):
        return None
    networks = variables.get("cluster_data_networks")
    if networks:
        return _inside(networks, facts.addresses) if isinstance(networks, list) and plain(networks) else None
    return _default_address(facts, facts.addresses)


def data_interface(variables: Mapping[str, Any], facts: NodeFacts) -> str | None:
    """Return the name of the interface that has the data address."""
    address = data_address(variables, facts)
    if address is None or isinstance(facts.addresses, Unknown):
        return None
    return next((entry.interface for entry in facts.addresses if entry.address == address), None)


def data_network(variables: Mapping[str, Any], facts: NodeFacts) -> str | None:
    """Return the IPv4 network of the data address in CIDR notation; None if unknown.

    It is the network in ``cluster_data_networks`` that contains the address, else that of the interface. A network of
    one address is widened to two, because Open MPI matches all addresses with a /32.
    """
    address = data_address(variables, facts)
    if address is None or isinstance(facts.addresses, Unknown):
        return None
    entry = next((item for item in facts.addresses if item.address == address and item.version == 4), None)  # noqa: PLR2004
    if entry is None:
        return None
    stated = (text for text in _networks(variables) if _contains(text, address))
    try:
        return next(stated, None) or str(ipaddress.ip_network(f"{address}/{min(entry.prefix, 31)}", strict=False))
    except ValueError:
        return None


def _contains(network: str, address: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)


def free_port(facts: NodeFacts, first: int) -> int:
    """Return the first port from `first` on without a listener; `first` if the listeners are unknown."""
    taken = set() if isinstance(facts.listening, Unknown) else {entry.port for entry in facts.listening}
    return next(port for port in range(first, first + len(taken) + 1) if port not in taken)


def _inside(networks: list[Any], addresses: tuple[Address, ...]) -> str | None:
    for text in networks:
        try:
            network = ipaddress.ip_network(str(text), strict=False)
        except ValueError:
            continue
        for entry in addresses:
            if entry.version and ipaddress.ip_address(entry.address) in network:
                return entry.address
    return None


def _default_address(facts: NodeFacts, addresses: tuple[Address, ...]) -> str | None:
    if isinstance(facts.routes, Unknown):
        return None
    route = next((route for route in facts.routes if route.destination == "default"), None)
    if route is None:
        return None
    if route.source:
        return route.source
    usable = (a for a in addresses if a.interface == route.interface and a.version == 4 and a.scope == "global")  # noqa: PLR2004
    return next((entry.address for entry in usable), None)
