"""Checks of the data addresses that nodes report, made before other nodes send anything to them.

The role platform links this file as a filter plugin, so that plain Ansible applies the same rules. It imports only
the standard library.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


@dataclass(frozen=True)
class Claim:
    """The sources of one node's data address."""

    address: str = ""
    """The address that the node reports; empty if it reports none."""
    stated: str = ""
    """The inventory's ``cluster_data_address``, which takes precedence."""
    management: str = ""
    """The inventory's ``ansible_host``."""
    networks: Sequence[str] = ()
    """The inventory's ``cluster_data_networks``."""


def address_problem(address: object, stated: object = "", networks: Sequence[str] = ()) -> str:
    """Return why a node cannot have this data address, or an empty string. The reason does not repeat the address."""
    problem = _form_problem(str(address))
    if problem:
        return problem
    if stated:
        return "" if str(address) == str(stated) else f"cluster_data_address is {stated}"
    parsed = ipaddress.ip_address(str(address))
    if networks:
        inside = any(parsed in ipaddress.ip_network(network, strict=False) for network in networks)
        return "" if inside else f"it is in none of cluster_data_networks ({', '.join(networks)})"
    if parsed.is_loopback or parsed.is_link_local or parsed.is_reserved:
        return "other nodes cannot reach it: it is a loopback, link-local or reserved address"
    return ""


def _form_problem(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "it is not an IP address"
    if "%" in address:
        return "it has a zone, which is valid only on the node itself"
    if str(parsed) != address or getattr(parsed, "ipv4_mapped", None):
        return "it is not in canonical form"
    return "it cannot be a host address" if parsed.is_unspecified or parsed.is_multicast else ""


def refused_claims(claims: Mapping[str, Claim]) -> dict[str, str]:
    """Return node -> reason for every node that claims an address which may belong to another node.

    An address in the inventory belongs to its node. If two nodes claim one address that the inventory assigns to
    neither, both are refused, because the wrong claim cannot be identified.
    """
    refused = {
        node: problem
        for node, claim in claims.items()
        if claim.address and (problem := address_problem(claim.address, claim.stated, claim.networks))
    }
    assigned = {_normal(claim.stated): node for node, claim in claims.items() if claim.stated}
    hosts: dict[str, list[str]] = {}
    claimants: dict[str, list[str]] = {}
    for node, claim in claims.items():
        if claim.management:
            hosts.setdefault(_normal(claim.management), []).append(node)
        if claim.address and not claim.stated and node not in refused:
            claimants.setdefault(claim.address, []).append(node)
    for address, nodes in claimants.items():
        owner, at_host = assigned.get(address), hosts.get(address, [])
        rivals = [node for node in nodes if node in at_host] if at_host else nodes
        if owner is not None:
            refused |= dict.fromkeys(nodes, f"{address} is the cluster_data_address of {owner}")
            continue
        if at_host:
            others = [node for node in nodes if node not in at_host]
            refused |= dict.fromkeys(others, f"{address} is the address (ansible_host) of {' and '.join(at_host)}")
        if len(rivals) > 1:
            refused |= dict.fromkeys(rivals, f"{' and '.join(rivals)} claim the same address, {address}")
    return refused


def _normal(address: str) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address


def admitted_sources(addresses: Mapping[str, str], networks: Sequence[str], own: str) -> tuple[str, ...]:
    """Return the networks and addresses that a node's firewall admits.

    Args:
        addresses: node -> data address.
        networks: ``cluster_data_networks``; without it, only the addresses of the other nodes are admitted.
        own: the name of the node.
    """
    stated = [ipaddress.ip_network(network, strict=False) for network in networks]
    peers = {ipaddress.ip_address(address) for name, address in addresses.items() if name != own}
    outside = [address for address in peers if not any(address in network for network in stated)]
    return (*map(str, stated), *map(str, sorted(outside, key=lambda one: (one.version, int(one)))))


def is_host_name(name: object) -> bool:
    """Return whether a name can stand in /etc/hosts without meaning anything else."""
    return _NAME.fullmatch(str(name)) is not None


def _claims(hostvars: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return node -> its claim, as `Claim` has it: of the nodes of a run, and of those whose inventory states it."""
    return {
        name: {
            "address": (hostvars[name].get("platform_node") or {}).get("data_address") or "",
            "stated": hostvars[name].get("cluster_data_address") or "",
            "management": hostvars[name].get("ansible_host") or name,
            "networks": hostvars[name].get("cluster_data_networks") or [],
        }
        for name in names
    }


def _refused(claims: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return refused_claims({node: Claim(**claim) for node, claim in claims.items()})


def _accepted(claims: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return node -> data address: the inventory's, or the accepted claim of the node."""
    refused = _refused(claims)
    named = {node: claim for node, claim in claims.items() if is_host_name(node)}
    candidates = {node: claim.get("address") or claim.get("stated") for node, claim in named.items()}
    return {node: str(address) for node, address in candidates.items() if address and node not in refused}


class FilterModule:
    """Filters of the role platform."""

    def filters(self) -> dict[str, object]:
        """Return the filters by name."""
        return {
            "platform_address_problem": address_problem,
            "platform_address_claims": _claims,
            "platform_addresses_accepted": _accepted,
            "platform_addresses_refused": _refused,
            "platform_admitted_sources": admitted_sources,
            "platform_host_name": is_host_name,
        }
