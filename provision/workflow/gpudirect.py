"""The verdict on GPUDirect RDMA for the nodes of an inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.errors import ProvisionError
from provision.workflow.survey import chosen, probe, with_defaults

if TYPE_CHECKING:
    from provision.facts import NodeFacts
    from provision.gdr import NodeGdr
    from provision.model import Cluster


def gdr(cluster: Cluster, limit: str | None = None) -> tuple[NodeGdr, ...]:
    """Probe the nodes, one SSH session each, and return the path between GPU memory and network cards."""
    full = with_defaults(cluster)
    nodes = chosen(full, limit)
    facts = probe(nodes, names=[node.name for node in full.nodes], topology=True)
    return tuple(_node_gdr(node.name, facts[node.name]) for node in nodes)


def _node_gdr(name: str, facts: NodeFacts | ProvisionError) -> NodeGdr:
    from provision.facts import simulated
    from provision.gdr import GdrPath, GdrVerdict, NodeGdr
    from provision.gdr.observed import has_gpus, missing_fact, verdict_of
    from provision.model.reason import reason

    if isinstance(facts, ProvisionError):
        nothing = GdrVerdict(GdrPath.NONE, (reason("gdr.unreachable", cause=facts.message),))
        error = reason("gdr.probe_failed", cause=facts.message, advice=facts.remedy, error=facts.code)
        return NodeGdr(name, nothing, error=error)
    missing = missing_fact(facts) if has_gpus(facts) else None
    return NodeGdr(name, verdict_of(facts), simulated(facts, "nvidia"), missing)
