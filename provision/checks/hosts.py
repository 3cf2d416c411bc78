"""Which nodes can take ranks of a job, how many, and why the others cannot."""

from __future__ import annotations

from provision.checks.boot import held_back
from provision.errors import ProvisionError
from provision.facts import NodeFacts, Unknown, data_address, free_port, gpu_count
from provision.facts.system import Hardware
from provision.launchers import MASTER_PORT, HostEntry
from provision.model import Node
from provision.model.cluster import NO_JOBS

__all__ = ["host_entry"]


def host_entry(node: Node, facts: NodeFacts | ProvisionError, *, allow_degraded: bool = False) -> HostEntry | str:
    """Return the node's line of a host file, or the reason for which it is left out.

    A node whose check at boot differs from what is recorded of it takes no ranks, unless that is allowed.
    """
    if not node.takes_jobs:
        return NO_JOBS
    if isinstance(facts, ProvisionError):
        return f"cannot be reached: {facts.message}"
    degraded = None if allow_degraded else held_back(node, facts)
    reasons = [reason for reason in (_unusable(facts), degraded.reason if degraded else "") if reason]
    if reasons:
        return "; ".join(reasons)
    address = data_address(node.variables, facts)
    if address is None:
        return "it has no address on the data network"
    gpus = gpu_count(facts) or 0
    slots = gpus or _cpu_slots(node, facts)
    cpus = facts.hardware.cpus if isinstance(facts.hardware, Hardware) else 0
    kind = "gpu" if gpus else "cpu"
    return HostEntry(node.name, address, slots, kind, cpus, free_port(facts, MASTER_PORT))


def _unusable(facts: NodeFacts) -> str:
    container = facts.container
    if isinstance(container, Unknown):
        return f"its training container cannot be looked at: {container.reason}"
    if container is None:
        return "it has no training container; run: provision apply"
    if not container.running:
        return f"its training container is {container.status}"
    if isinstance(facts.hardware, Unknown):
        return f"its CPUs cannot be counted: {facts.hardware.reason}"
    return _broken_gpus(facts)


def _broken_gpus(facts: NodeFacts) -> str:
    if isinstance(facts.gpus, Unknown):
        return f"its GPUs cannot be counted: {facts.gpus.reason}"
    if gpu_count(facts) is None:
        on_bus = 0 if isinstance(facts.gpu_pci, Unknown) else len(facts.gpu_pci)
        return f"only {len(facts.gpus)} of its {on_bus} GPUs can be used"
    return ""


def _cpu_slots(node: Node, facts: NodeFacts) -> int:
    wanted = node.variables.get("cluster_slots")
    if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > 0:
        return wanted
    return facts.hardware.cpus if isinstance(facts.hardware, Hardware) else 1
