"""The nodes of an inventory as places for a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from provision.errors import ProvisionError, UsageError
from provision.model.cluster import NO_JOBS
from provision.model.reason import Reason, reason
from provision.workflow.survey import chosen, degraded, probe, with_defaults

if TYPE_CHECKING:
    from provision.facts import NodeFacts
    from provision.facts.gpu import Gpu
    from provision.model import Cluster, Node, Topology
    from provision.topology.candidates import Candidate, Machine, Mode, Port
    from provision.topology.placement import Places

Matrix = tuple[tuple[int, ...], ...]


def places_for_jobs(cluster: Cluster, limit: str | None = None, measured: Mapping[str, Matrix] | None = None) -> Places:
    """Probe the nodes, one SSH session each, and return those that a job may be placed on.

    Args:
        cluster: the inventory.
        limit: an Ansible host pattern.
        measured: by node what was measured between its GPUs, in tenths of GB/s.

    Raises:
        UsageError: what was measured is of another machine than the node.
    """
    full = with_defaults(cluster)
    probed = probe(chosen(full, limit), names=[node.name for node in full.nodes], topology=True)
    degraded_nodes = {name: verdict.reason for name, verdict in degraded(full, probed).items()}
    return places_among(full, probed, degraded_nodes, measured)


def places_among(
    cluster: Cluster,
    probed: Mapping[str, NodeFacts | ProvisionError],
    degraded_nodes: Mapping[str, Reason] | None = None,
    measured: Mapping[str, Matrix] | None = None,
) -> Places:
    """Return the nodes of `probed`, probed with their topology, as places for a job.

    Args:
        cluster: with the roles' defaults.
        probed: the probe result of each node.
        degraded_nodes: nodes that take no job now, and why.
        measured: by node what was measured between its GPUs, in tenths of GB/s.

    Raises:
        UsageError: what was measured is of another machine than the node.
    """
    from provision.facts import simulated
    from provision.topology.candidates import Mode
    from provision.topology.placement import Places
    from provision.topology.topo_file import grouped

    modes = any(_mode(node) is not Mode.DEFAULT for node in cluster.nodes)
    made: list[Candidate] = []
    notes: list[tuple[str, str]] = []
    left_out: list[tuple[str, Reason]] = []
    for node in (node for node in cluster.nodes if node.name in probed):
        facts = probed[node.name]
        if not node.takes_jobs:
            left_out.append((node.name, NO_JOBS))
            continue
        if isinstance(facts, ProvisionError):
            left_out.append((node.name, reason("placement.node_unreachable", cause=facts.message)))
            continue
        why = unusable(facts) or (degraded_nodes or {}).get(node.name)
        if why is not None:
            left_out.append((node.name, why))
            continue
        candidate, texts = candidate_of(node, facts, (measured or {}).get(node.name))
        made.append(candidate if modes else replace(candidate, mode=None))
        notes.extend((node.name, text) for text in texts)
    stand_ins = tuple(
        name for name, facts in probed.items() if not isinstance(facts, ProvisionError) and simulated(facts, "nvidia")
    )
    lost = tuple(name for name, facts in probed.items() if isinstance(facts, ProvisionError))
    return Places(tuple(made), grouped(notes), tuple(left_out), lost, stand_ins)


def unusable(facts: NodeFacts) -> Reason | None:
    """Return why the node's GPUs cannot be placed on; None when they can."""
    from provision.facts import Unknown, gpu_count

    if isinstance(facts.topology, Unknown):
        return reason("placement.links_unknown", cause=facts.topology.reason)
    if isinstance(facts.gpus, Unknown):
        return reason("placement.gpus_unknown", cause=facts.gpus.reason)
    if gpu_count(facts) is None:
        return reason("placement.gpus_missing")
    return None if facts.topology.gpus else reason("placement.no_gpu")


def candidate_of(node: Node, facts: NodeFacts, p2p: Matrix | None = None) -> tuple[Candidate, list[str]]:
    """Return the node as a place, and what had to be assumed."""
    from provision.report.reasons import message
    from provision.topology.candidates import Candidate, faulty

    topology, gpus = _known(facts)
    if p2p is not None and len(p2p) != len(topology.gpus):
        raise UsageError(
            f"{node.name}: {len(p2p)} GPUs were measured, and it has {len(topology.gpus)}",
            remedy="Run p2pBandwidthLatencyTest on that node, with all its GPUs visible.",
        )
    texts = [message(warning) for warning in topology.warnings]
    machine = _machine(node, facts, p2p, texts)
    candidate = Candidate(
        node.name,
        machine,
        busy=_busy(facts, texts),
        faulty=faulty(topology),
        mig=frozenset(gpu.index for gpu in gpus if gpu.health.mig),
        instances={gpu.index: gpu.instances for gpu in gpus if gpu.health.mig},
        mode=_mode(node),
        leaf=_text(node, "cluster_leaf"),
        rack=_text(node, "cluster_rack"),
        domain=_text(node, "cluster_nvlink_domain"),
    )
    return candidate, texts


def _mode(node: Node) -> Mode:
    """Return for which jobs a node is; while no node of an inventory differs from the default, all are for all."""
    from provision.topology.candidates import Mode

    mode = str(node.variables.get("cluster_gpu_schedule") or Mode.DEFAULT)
    return Mode(mode) if mode in set(Mode) else Mode.DEFAULT


def _known(facts: NodeFacts) -> tuple[Topology, tuple[Gpu, ...]]:
    """Return what `unusable` has found to be known."""
    from provision.facts import Unknown

    if isinstance(facts.topology, Unknown) or isinstance(facts.gpus, Unknown):
        raise TypeError("a node whose GPUs are not known is no place for a job")
    return facts.topology, facts.gpus


def _machine(node: Node, facts: NodeFacts, p2p: Matrix | None, texts: list[str]) -> Machine:
    from provision.topology.candidates import Machine
    from provision.topology.products import DEFAULT_LANE, DEFAULT_PCIE, lanes, pcie_rate

    topology, gpus = _known(facts)
    known = lanes(gpus[0].name, gpus[0].compute_capability)
    if known is None and p2p is None:
        texts.append(f"of {gpus[0].name} no lane is known: {DEFAULT_LANE // 10} GB/s are taken for an NVLink lane")
    slots = [pcie_rate(gpu.health.pcie_generation_max or 0, gpu.health.pcie_width_max or 16) for gpu in gpus]
    slot = min((rate for rate in slots if rate is not None), default=None)
    if slot is None:
        texts.append(f"the generation of its PCIe slots is unknown: {DEFAULT_PCIE // 10} GB/s per slot are assumed")
    return Machine(
        topology,
        lane=known.rate if known else DEFAULT_LANE,
        lanes=known.count if known else None,
        pcie=slot or DEFAULT_PCIE,
        ports=_ports(node, facts, texts),
        p2p=p2p,
    )


def _busy(facts: NodeFacts, texts: list[str]) -> frozenset[int]:
    """A process is reported with one of its devices, so all GPUs of its node count as busy; unknown is busy too."""
    from provision.facts import Unknown

    topology, _ = _known(facts)
    if isinstance(facts.managed, Unknown):
        texts.append(f"its GPUs count as busy, as what runs there is not known: {facts.managed.reason}")
    elif facts.managed.jobs:
        texts.append(f"its GPUs count as busy: {facts.managed.jobs[0]}")
    else:
        return frozenset()
    return frozenset(gpu.index for gpu in topology.gpus)


def _ports(node: Node, facts: NodeFacts, texts: list[str]) -> tuple[Port, ...]:
    """Return what each card of the matrix can do: those that carry the jobs' data have a rate, the others none."""
    from provision.facts import Unknown
    from provision.facts.rails import node_rails
    from provision.topology.candidates import Port
    from provision.topology.products import DEFAULT_NIC, nic_rate

    topology, _ = _known(facts)
    rails = node_rails(node.name, node.variables, facts)
    texts.extend(rails.problems)
    devices = () if isinstance(facts.rdma, Unknown) else facts.rdma.devices
    if topology.nics and not rails.endpoints and not rails.problems:
        texts.append(f"none of its network cards counts: {rails.absent}")
    layers = {device.name: port.link_layer for device in devices for port in device.ports}
    rates = {
        end.device: DEFAULT_NIC if end.line_rate_gbit is None else nic_rate(end.line_rate_gbit)
        for end in rails.endpoints
    }
    named = dict(_named_rails(node))
    return tuple(
        Port(
            rates.get(nic.name, 0) if not named or nic.name in named else 0,
            layers.get(nic.name, ""),
            named.get(nic.name, ""),
        )
        for nic in topology.nics
    )


def _named_rails(node: Node) -> Iterator[tuple[str, str]]:
    """Yield card and rail of each entry of ``cluster_rails``: a rail is a subnet, else a leaf, else the card itself."""
    entries = node.variables.get("cluster_rails")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and entry.get("card"):
            card = str(entry["card"])
            yield card, str(entry.get("subnet") or entry.get("leaf") or card)


def _text(node: Node, name: str) -> str:
    from provision.facts import plain

    value: Any = node.variables.get(name)
    return value if isinstance(value, str) and plain(value) else ""
