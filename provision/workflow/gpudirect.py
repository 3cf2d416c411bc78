"""The verdict on GPUDirect RDMA for the nodes of an inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.errors import ProvisionError
from provision.workflow.survey import chosen, probe, with_defaults

if TYPE_CHECKING:
    from provision.facts import NodeFacts
    from provision.gdr import NodeGdr
    from provision.model import Cluster

__all__ = ["gdr"]


def gdr(cluster: Cluster, limit: str | None = None) -> tuple[NodeGdr, ...]:
    """Probe the nodes, one SSH session each, and judge what way GPU memory takes to their network cards."""
    full = with_defaults(cluster)
    nodes = chosen(full, limit)
    found = probe(nodes, names=[node.name for node in full.nodes], topology=True)
    return tuple(_judged(node.name, found[node.name]) for node in nodes)


def _judged(name: str, found: NodeFacts | ProvisionError) -> NodeGdr:
    from provision.facts import simulated
    from provision.gdr import GdrPath, GdrVerdict, NodeGdr
    from provision.gdr.observed import has_gpus, missing_fact_reason, verdict_of

    if isinstance(found, ProvisionError):
        nothing = GdrVerdict(GdrPath.NONE, (f"the node was not reached: {found.message}",))
        return NodeGdr(name, nothing, error=found.message, remedy=found.remedy)
    error = missing_fact_reason(found) if has_gpus(found) else ""
    remedy = "Log in to the node and run that command by hand to see where it stops." if error else None
    return NodeGdr(name, verdict_of(found), simulated(found, "nvidia"), error or None, remedy)
