"""The job engine of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provision.jobs.engines.base import JobEngine
    from provision.model import Cluster


def job_engine(cluster: Cluster, requested: str = "") -> JobEngine:
    """Return the engine that runs the batch jobs of a cluster.

    Raises:
        EngineUnavailable: there is no such engine, or it cannot be used on this cluster.
    """
    from provision.jobs.engines import EngineContext, create_engine, engine_name
    from provision.workflow.probe_snapshot import ProbeSnapshot
    from provision.workflow.survey import with_defaults

    full = with_defaults(cluster)
    return create_engine(engine_name(full, requested), EngineContext(full, ProbeSnapshot()))
