"""What a job's command line follows from, where no node is asked: the inventory alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from provision.errors import LaunchError, ProvisionError
from provision.workflow.survey import chosen

if TYPE_CHECKING:
    from provision.facts import NodeFacts
    from provision.jobs.preflight import Container
    from provision.launchers import HostEntry
    from provision.model import Cluster, Node
    from provision.profiles import NodeNetwork


def node_networks(cluster: Cluster, facts: Mapping[str, NodeFacts | ProvisionError]) -> dict[str, NodeNetwork]:
    """Return how each node that was reached is connected; the cluster has the roles' defaults."""
    from provision.gdr.networks import node_network

    return {
        node.name: node_network(node.name, node.variables, node_facts)
        for node in cluster.nodes
        if node.name in facts and not isinstance(node_facts := facts[node.name], ProvisionError)
    }


def stated_networks(cluster: Cluster) -> dict[str, NodeNetwork]:
    """Return how each node is connected as the inventory states it; the cluster has the roles' defaults."""
    from provision.gdr.networks import stated_network

    return {node.name: stated_network(node.name, node.variables) for node in cluster.nodes}


def stated_entries(cluster: Cluster, limit: str | None = None) -> list[HostEntry]:
    """Return the nodes with the slots that the inventory states, in a cluster with the roles' defaults.

    Raises:
        LaunchError: it states none of some nodes, which are named.
    """
    nodes = [node for node in chosen(cluster, limit) if node.takes_jobs]
    silent = [node.name for node in nodes if not _slots(node)]
    if silent:
        raise LaunchError(
            f"the inventory does not state how many GPUs {_few(silent)} {'has' if len(silent) == 1 else 'have'}",
            remedy="Set cluster_gpus (or cluster_slots, on a node without GPUs), or leave --offline out: "
            "then the nodes are asked.",
        )
    return [_entry(node) for node in nodes]


def _slots(node: Node) -> int:
    return _number(node.variables, "cluster_gpus") or _number(node.variables, "cluster_slots")


def _entry(node: Node) -> HostEntry:
    from provision.launchers import HostEntry

    address = str(node.variables.get("cluster_data_address") or node.connection.host)
    kind = "gpu" if _number(node.variables, "cluster_gpus") else "cpu"
    return HostEntry(node.name, address, _slots(node), kind)


def _number(variables: Mapping[str, Any], name: str) -> int:
    value = variables.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _few(names: Sequence[str]) -> str:
    few = 6
    return ", ".join(names[:few]) + (f" and {len(names) - few} more" if len(names) > few else "")


def stated_container(variables: Mapping[str, Any]) -> Container:
    """Return the head node's container as the inventory states it: as root, with a library path.

    Raises:
        LaunchError: cluster_mpi names no MPI library.
    """
    from provision.jobs.preflight import Container
    from provision.launchers import DEFAULT_MPI, LAUNCHERS

    stated = str(variables.get("cluster_mpi") or DEFAULT_MPI)
    libraries = {name: launcher for name, launcher in LAUNCHERS.items() if launcher.label}
    launcher = libraries.get(stated)
    if launcher is None:
        raise LaunchError(
            f"cluster_mpi: unknown MPI library '{stated}'", remedy=f"Set it to one of: {', '.join(libraries)}."
        )
    program = str(variables.get("cluster_mpirun") or "mpirun")
    return Container(launcher.version, program, root=True, library_path=True, mpi=launcher.name)
