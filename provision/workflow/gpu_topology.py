"""The topology of one node, with what else is known of its GPUs and cards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from provision.errors import NodeError, ProvisionError, UsageError
from provision.workflow.survey import ask, chosen

if TYPE_CHECKING:
    from provision.connectors.base import Connector
    from provision.facts import NodeFacts
    from provision.facts.rdma import RdmaDevice
    from provision.model import Cluster
    from provision.topology.machine import GpuDetails, MachineTopology, NicDetails

__all__ = ["topology"]

_STAND_INS = ("gpus", "nvidia-smi", "everything")


def topology(cluster: Cluster, name: str) -> MachineTopology:
    """Ask one node how its GPUs and cards are linked, in one SSH session that asks for little else.

    Raises:
        UsageError: `name` is no node of the inventory, or several.
        ConnectionFailed: the node cannot be reached.
        NodeError: it has no GPU, or the tool does not answer as it should.
    """
    from provision.connectors import each

    nodes = chosen(cluster, name)
    if len(nodes) != 1:
        shown = ", ".join(node.name for node in nodes[:8])
        raise UsageError(f"{name} is {len(nodes)} nodes, and topo shows one", remedy=f"Name one of: {shown}.")
    found = each(nodes, _facts)[nodes[0].name]
    if isinstance(found, ProvisionError):
        raise found
    return _machine(nodes[0].name, found)


def _facts(connector: Connector) -> NodeFacts:
    from provision import facts
    from provision.facts.gpu import GpusFact
    from provision.facts.rdma import RdmaFact
    from provision.facts.records import SimulatedFact
    from provision.facts.topology import TopologyFact

    wanted = (TopologyFact(), GpusFact(), RdmaFact(), SimulatedFact())
    result = ask(connector, wanted, facts.Parameters(topology=True))
    return facts.parse(result.stdout, wanted, keep=False)


def _machine(name: str, found: NodeFacts) -> MachineTopology:
    from provision.facts import Unknown
    from provision.topology.machine import MachineTopology

    if isinstance(found.topology, Unknown):
        raise NodeError(
            found.topology.reason, node=name, remedy="Run nvidia-smi topo -m on the node to see what it prints."
        )
    if not found.topology.gpus:
        raise NodeError(
            "it has no GPU that nvidia-smi shows, or no nvidia-smi",
            node=name,
            remedy=f"See: provision verify --limit {name}",
        )
    stand_ins = found.simulated if isinstance(found.simulated, Mapping) else {}
    return MachineTopology(
        found.topology,
        name,
        tuple(f"{thing}: {text}" for thing, text in stand_ins.items() if thing.startswith(_STAND_INS)),
        _gpus(found),
        _nics(found),
    )


def _gpus(found: NodeFacts) -> dict[int, GpuDetails]:
    from provision.facts import Unknown
    from provision.topology.machine import GpuDetails

    gpus = () if isinstance(found.gpus, Unknown) else found.gpus
    return {gpu.index: GpuDetails(gpu.name, gpu.health.pcie_generation_max, gpu.health.pcie_width) for gpu in gpus}


def _nics(found: NodeFacts) -> dict[str, NicDetails]:
    from provision.facts import Unknown

    devices = () if isinstance(found.rdma, Unknown) else found.rdma.devices
    return {device.name: _nic(device) for device in devices}


def _nic(device: RdmaDevice) -> NicDetails:
    """The fastest port that can carry traffic speaks for a card; without one, the fastest."""
    from provision.topology.machine import NicDetails

    ports = [port for port in device.ports if port.active] or list(device.ports)
    port = max(ports, key=lambda port: port.gbit or 0, default=None)
    return NicDetails(port.gbit if port else None, port.link_layer if port else "", device.active)
