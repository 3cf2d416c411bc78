"""What every node of a cluster should know of the others.

It is worked out once, not once for each node: a thousand nodes that are to know a thousand are a million pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from provision.components.check import Scene
from provision.facts import NodeFacts, data_address, refused_addresses
from provision.facts.container_ssh import ContainerSsh
from provision.model import Cluster, Same


@dataclass(frozen=True)
class Everybody:
    """The nodes of a cluster by what they have and use now."""

    names: tuple[str, ...]
    """Of all nodes that take jobs, in the inventory's order."""
    addresses: Mapping[str, str]
    """Node -> data address, where one is known and not refused."""
    host_keys: Mapping[str, str]
    """Node -> its container's host key; not there where none is in use, or none was seen."""
    client_keys: Mapping[str, str]


def everybody(scene: Scene) -> Everybody:
    """Return what is known of all nodes of the scene's cluster."""
    return _everybody(Same(scene.cluster), Same(scene.all_facts))


@lru_cache(maxsize=4)
def _everybody(cluster: Same[Cluster], all_facts: Same[Mapping[str, NodeFacts]]) -> Everybody:
    return _of(cluster.it, all_facts.it)


def _of(cluster: Cluster, all_facts: Mapping[str, NodeFacts]) -> Everybody:
    addresses = {node.name: data_address(node.variables, all_facts.get(node.name)) for node in cluster.nodes}
    refused = refused_addresses(cluster.nodes, all_facts)
    ssh = {name: facts.container_ssh for name in addresses if (facts := all_facts.get(name))}
    seen = {name: value for name, value in ssh.items() if isinstance(value, ContainerSsh)}
    return Everybody(
        names=tuple(node.name for node in cluster.nodes if node.takes_jobs),
        addresses={name: address for name, address in addresses.items() if address is not None and name not in refused},
        host_keys={name: value.host_key for name, value in seen.items() if value.host_key},
        client_keys={name: value.client_key for name, value in seen.items() if value.client_key},
    )
