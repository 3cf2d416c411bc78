"""The topology of one node with further properties of its GPUs and cards."""

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

_STAND_INS = ("gpus", "nvidia-smi", "everything")


def topology(cluster: Cluster, name: str) -> MachineTopology:
    """Probe the links between the GPUs and cards of one node, in one SSH session.

    Raises:
        UsageError: `name` is not exactly one node of the inventory.
        ConnectionFailed: the node is unreachable.
        NodeError: it has no GPU, or nvidia-smi fails.
    """
    from provision.connectors import each

    nodes = chosen(cluster, name)
    if len(nodes) != 1:
        shown = ", ".join(node.name for node in nodes[:8])
        raise UsageError(f"{name} names {len(nodes)} nodes; topo shows one", remedy=f"Choose one of: {shown}.")
    facts = each(nodes, _facts)[nodes[0].name]
    if isinstance(facts, ProvisionError):
        raise facts
    return _machine(nodes[0].name, facts)


def _facts(connector: Connector) -> NodeFacts:
    from provision import facts
    from provision.facts.gpu import GpusFact
    from provision.facts.rdma import RdmaFact
    from provision.facts.records import SimulatedFact
    from provision.facts.topology import TopologyFact

    requested = (TopologyFact(), GpusFact(), RdmaFact(), SimulatedFact())
    result = ask(connector, requested, facts.Parameters(topology=True))
    return facts.parse(result.stdout, requested, keep=False)


def _machine(name: str, facts: NodeFacts) -> MachineTopology:
    from provision.facts import Unknown
    from provision.topology.machine import MachineTopology

    if isinstance(facts.topology, Unknown):
        raise NodeError(
            facts.topology.reason, node=name, remedy="Run nvidia-smi topo -m on the node to see what it prints."
        )
    if not facts.topology.gpus:
        raise NodeError(
            "nvidia-smi is missing or shows no GPU",
            node=name,
            remedy=f"Check the node: provision verify --limit {name}",
        )
    stand_ins = facts.simulated if isinstance(facts.simulated, Mapping) else {}
    return MachineTopology(
        facts.topology,
        name,
        tuple(f"{thing}: {text}" for thing, text in stand_ins.items() if thing.startswith(_STAND_INS)),
        _gpus(facts),
        _nics(facts),
    )


def _gpus(facts: NodeFacts) -> dict[int, GpuDetails]:
    from provision.facts import Unknown
    from provision.topology.machine import GpuDetails

    gpus = () if isinstance(facts.gpus, Unknown) else facts.gpus
    return {gpu.index: GpuDetails(gpu.name, gpu.health.pcie_generation_max, gpu.health.pcie_width) for gpu in gpus}


def _nics(facts: NodeFacts) -> dict[str, NicDetails]:
    from provision.facts import Unknown

    devices = () if isinstance(facts.rdma, Unknown) else facts.rdma.devices
    return {device.name: _nic(device) for device in devices}


def _nic(device: RdmaDevice) -> NicDetails:
    """Return the properties of a card: those of its fastest active port, or of its fastest port."""
    from provision.topology.machine import NicDetails

    ports = [port for port in device.ports if port.active] or list(device.ports)
    port = max(ports, key=lambda port: port.gbit or 0, default=None)
    return NicDetails(port.gbit if port else None, port.link_layer if port else "", device.active)
