"""Batch jobs: which engine runs those of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provision.jobs.engines.base import Engine
    from provision.model import Cluster

__all__ = ["engine"]


def engine(cluster: Cluster) -> Engine:
    """Return what runs the cluster's batch jobs."""
    from provision.jobs.engines.direct import DirectEngine
    from provision.jobs.extras import JobExtras
    from provision.workflow.job_sight import Sight
    from provision.workflow.survey import with_defaults

    full = with_defaults(cluster)
    return DirectEngine(full, Sight(), JobExtras(full))
