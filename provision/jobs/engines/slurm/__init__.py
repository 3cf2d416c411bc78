"""Jobs on a cluster that Slurm schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provision.jobs.engines import EngineContext
    from provision.jobs.engines.slurm.engine import SlurmEngine

__all__ = ["create"]


def create(context: EngineContext) -> SlurmEngine:
    """Return the engine for a cluster."""
    from provision.connectors.absent import AbsentNodes
    from provision.jobs.engines.common.engine import head_of
    from provision.jobs.engines.slurm.engine import SlurmEngine
    from provision.jobs.extras import JobExtras
    from provision.jobs.signing import keys_of

    cluster = context.cluster
    controller = str(cluster.nodes[0].variables.get("slurm_controller") or "")
    head = controller if any(node.name == controller for node in cluster.nodes) else head_of(cluster)
    keys, absent = keys_of(cluster, head), AbsentNodes(cluster.inventory)
    return SlurmEngine(cluster, context.cluster_probe, keys, JobExtras(cluster), absent, head=head)
