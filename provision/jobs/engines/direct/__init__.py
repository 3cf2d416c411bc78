"""Jobs over SSH and Docker: nothing else is installed on the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.jobs.engines.direct.engine import DirectEngine, head_of

if TYPE_CHECKING:
    from provision.jobs.engines import EngineContext

__all__ = ["DirectEngine", "create"]


def create(context: EngineContext) -> DirectEngine:
    """Return the engine for a cluster."""
    from provision.connectors.absent import AbsentNodes
    from provision.jobs.extras import JobExtras
    from provision.jobs.signing import keys_of

    cluster = context.cluster
    keys = keys_of(cluster, head_of(cluster))
    return DirectEngine(cluster, context.cluster_probe, keys, JobExtras(cluster), AbsentNodes(cluster.inventory))
