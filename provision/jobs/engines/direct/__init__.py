"""Jobs over SSH and Docker: nothing else is installed on the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.jobs.engines.common.engine import head_of
from provision.jobs.engines.direct.engine import DirectEngine

if TYPE_CHECKING:
    from provision.jobs.engines import EngineContext

__all__ = ["DirectEngine", "create"]


def create(context: EngineContext) -> DirectEngine:
    """Return the engine for a cluster.

    Raises:
        EngineUnavailable: the inventory says that Slurm schedules a node.
    """
    from provision.connectors.absent import AbsentNodes
    from provision.jobs.engines import VARIABLE
    from provision.jobs.engines.base import EngineUnavailable
    from provision.jobs.extras import JobExtras
    from provision.jobs.signing import keys_of
    from provision.model.reason import reason
    from provision.report.reasons import error_of

    cluster = context.cluster
    if any(str(node.variables.get(VARIABLE) or "") == "slurm" for node in cluster.nodes):
        raise error_of(EngineUnavailable, reason("slurm.other_engine", cause=f"{VARIABLE}: slurm"))
    keys = keys_of(cluster, head_of(cluster))
    return DirectEngine(cluster, context.cluster_probe, keys, JobExtras(cluster), AbsentNodes(cluster.inventory))
