"""Moving the waiting jobs of the engine `direct` to another job engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.workflow.jobs import job_engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provision.jobs.engines.base import JobEngine, TakeOver
    from provision.model import Cluster
    from provision.model.job import JobRecord
    from provision.report.json_documents.jobs import MigratedQueue, QueueJob


def migration_engine(cluster: Cluster, name: str) -> tuple[JobEngine, bool]:
    """Return the engine that takes over the waiting jobs, and whether the inventory chooses it.

    Raises:
        UsageError: there is no such engine, or it does not take over jobs.
    """
    from provision.errors import UsageError
    from provision.jobs.engines import DEFAULT_ENGINE, engine_name
    from provision.jobs.engines.base import Capability, require
    from provision.model.reason import reason
    from provision.report.reasons import error_of
    from provision.workflow.survey import with_defaults

    if name == DEFAULT_ENGINE:
        raise error_of(UsageError, reason("slurm.no_move_back", engine=name))
    engine = job_engine(cluster, name)
    require(engine, Capability.TAKE_OVER, "provision queue migrate")
    return engine, engine_name(with_defaults(cluster)) == name


def occupied_nodes(jobs: Sequence[JobRecord]) -> list[str]:
    """Return the nodes of jobs, which Slurm cannot use before they end."""
    return sorted({name for job in jobs for name in _nodes(job)})


def migration_document(result: TakeOver, engine: str, *, dry_run: bool) -> MigratedQueue:
    """Return the document of `queue migrate --json`."""
    return {
        "engine": engine,
        "dryRun": dry_run,
        "moved": [{**_job(one.job), "engineJob": one.engine_job} for one in result.moved],
        "remaining": [
            {
                **_job(one.job),
                "code": one.error.code or "",
                "reason": one.error.message,
                "remedy": one.error.remedy or "",
            }
            for one in result.remaining
        ],
        "unfinished": [
            {**_job(job), "status": job.status, "nodes": occupied_nodes([job])} for job in result.unfinished
        ],
    }


def _job(job: JobRecord) -> QueueJob:
    return {"name": job.spec.name, "uuid": job.id, "owner": job.owner}


def _nodes(job: JobRecord) -> set[str]:
    return {*job.allocations, *(assignment.node for assignment in job.assignments)} or set(job.nodes)
