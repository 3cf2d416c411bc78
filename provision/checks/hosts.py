"""Which nodes can run ranks of a job, how many, and why the others cannot."""

from __future__ import annotations

from provision.checks.boot import boot_failure
from provision.errors import ProvisionError
from provision.facts import NodeFacts, Unknown, data_address, free_port, gpu_count
from provision.facts.system import Hardware
from provision.launchers import MASTER_PORT, HostEntry
from provision.model import Node
from provision.model.cluster import NO_JOBS
from provision.model.reason import Reason, reason


def host_entry(
    node: Node, facts: NodeFacts | ProvisionError, *, allow_degraded: bool = False
) -> HostEntry | tuple[Reason, ...]:
    """Return the node's entry of a host file, or the reasons why the node is left out.

    A degraded node gets no ranks unless `allow_degraded` is set.
    """
    if not node.takes_jobs:
        return (NO_JOBS,)
    if isinstance(facts, ProvisionError):
        return (reason("host.unreachable", cause=facts.message),)
    degraded = None if allow_degraded else boot_failure(node, facts)
    unusable = _unusable(facts)
    reasons = tuple(item for item in (unusable, degraded.reason if degraded else None) if item)
    if reasons:
        return reasons
    address = data_address(node.variables, facts)
    if address is None:
        return (reason("host.no_address"),)
    gpus = gpu_count(facts) or 0
    slots = gpus or _cpu_slots(node, facts)
    cpus = facts.hardware.cpus if isinstance(facts.hardware, Hardware) else 0
    kind = "gpu" if gpus else "cpu"
    return HostEntry(node.name, address, slots, kind, cpus, free_port(facts, MASTER_PORT))


def _unusable(facts: NodeFacts) -> Reason | None:  # noqa: PLR0911 - one for each result
    container = facts.container
    if isinstance(container, Unknown):
        return reason("host.container_unknown", cause=container.reason)
    if container is None:
        return reason("host.no_container")
    if not container.running:
        return reason("host.container_stopped", state=container.status)
    if isinstance(facts.hardware, Unknown):
        return reason("host.cpus_unknown", cause=facts.hardware.reason)
    if isinstance(facts.gpus, Unknown):
        return reason("host.gpus_unknown", cause=facts.gpus.reason)
    if gpu_count(facts) is None:
        on_bus = 0 if isinstance(facts.gpu_pci, Unknown) else len(facts.gpu_pci)
        return reason("host.gpus_missing", usable=len(facts.gpus), count=on_bus)
    return None


def _cpu_slots(node: Node, facts: NodeFacts) -> int:
    wanted = node.variables.get("cluster_slots")
    if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > 0:
        return wanted
    return facts.hardware.cpus if isinstance(facts.hardware, Hardware) else 1
