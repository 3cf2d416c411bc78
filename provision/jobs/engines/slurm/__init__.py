"""Jobs on a cluster that Slurm schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provision.jobs.engines import EngineContext
    from provision.jobs.engines.slurm.engine import SlurmEngine
    from provision.jobs.engines.slurm.login.engine import LoginEngine
    from provision.model import Cluster

__all__ = ["create"]


def create(context: EngineContext) -> SlurmEngine | LoginEngine:
    """Return the engine for a cluster.

    Raises:
        EngineUnavailable: the settings of a login node are not valid.
    """
    if context.cluster.slurm_login:
        return _login_engine(context.cluster)
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


def _login_engine(cluster: Cluster) -> LoginEngine:
    """Return the engine of an ordinary user on a login node."""
    from provision.batch.data import volumes_of
    from provision.jobs.engines.base import EngineUnavailable
    from provision.jobs.engines.slurm.login.engine import LoginEngine
    from provision.jobs.engines.slurm.login.job_script import CONTAINERS, LoginSite
    from provision.jobs.engines.slurm.submission import labels
    from provision.model.reason import reason
    from provision.report.reasons import error_of

    variables, name = cluster.nodes[0].variables, cluster.slurm_login
    login = next((node for node in cluster.nodes if node.name == name), None)
    if login is None:
        raise error_of(EngineUnavailable, reason("slurm.login_unknown", name=name))
    if variables.get("slurm_source") != "present":
        raise error_of(EngineUnavailable, reason("slurm.login_source"))
    containers = str(variables.get("cluster_slurm_containers") or CONTAINERS[0])
    if containers not in CONTAINERS:
        raise error_of(EngineUnavailable, reason("slurm.login_containers", value=containers, choices=CONTAINERS))
    volumes = volumes_of(cluster)
    site = LoginSite(
        containers,
        {one.name: one.path for one in volumes.values()},
        frozenset(one.name for one in volumes.values() if one.read_only),
    )
    return LoginEngine(cluster, login, site, labels(cluster))
