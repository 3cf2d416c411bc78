"""Batch jobs: which engine runs those of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provision.jobs.engines.base import Engine
    from provision.jobs.signing import JobKeys
    from provision.model import Cluster

__all__ = ["engine"]


def engine(cluster: Cluster) -> Engine:
    """Return what runs the cluster's batch jobs."""
    from provision.connectors.absent import AbsentNodes
    from provision.jobs.engines.direct import DirectEngine
    from provision.jobs.extras import JobExtras
    from provision.workflow.cluster_snapshot import ProbeSnapshot
    from provision.workflow.survey import with_defaults

    full = with_defaults(cluster)
    return DirectEngine(full, ProbeSnapshot(), job_keys(full), JobExtras(full), AbsentNodes(full.inventory))


def job_keys(cluster: Cluster) -> JobKeys:
    """Return who may sign the jobs of a cluster, and the key that signs here."""
    from provision.inventory.people import people
    from provision.jobs.engines.direct.engine import head_of
    from provision.jobs.signing import JobKeys
    from provision.local_files import state_folder

    name = str(cluster.nodes[0].variables.get("cluster_name") or head_of(cluster))
    return JobKeys(name, people(cluster), state_folder() / "signing_key")
