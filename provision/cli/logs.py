"""``provision logs``: output of a batch job's instances."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import LabOption
from provision.cli.job_options import (
    JobArgument,
    LongInventoryOption,
    TypeOption,
    engine_of,
    insist_on_kind,
    now,
    require,
    seconds,
)
from provision.cli.levels import info, patience
from provision.cli.option_groups import with_option_groups
from provision.errors import NotFound, UsageError

if TYPE_CHECKING:
    from provision.jobs.engines.base import LogRequest
    from provision.model.job import JobRecord


@dataclass(frozen=True, kw_only=True)
class LineOptions:
    """Selection of lines."""

    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the job ends; exit with its code.")] = (
        False
    )
    tail: Annotated[int, typer.Option("--tail", "-t", metavar="N", help="Only the last N lines; -1: all.")] = -1
    instances: Annotated[
        list[str] | None,
        typer.Option("--instance", "-i", metavar="INSTANCE", help="Of this instance. Repeatable."),
    ] = None
    rank: Annotated[int | None, typer.Option("--rank", metavar="R", help="Of this rank.")] = None
    every: Annotated[bool, typer.Option("--all", help="Of all instances, each line with the instance's name.")] = False
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="Not older than 5s, 2m or 3h.")] = ""
    since_time: Annotated[
        str, typer.Option("--since-time", metavar="TIME", help="Not older than 2026-01-31T12:00:00Z.")
    ] = ""
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Print the time (UTC) of each line.")] = False
    attempt: Annotated[int, typer.Option("--attempt", metavar="N", help="Of this attempt. [the last]")] = 0
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Of the attempt before the last.")] = False


@with_option_groups
def logs(
    name: JobArgument,
    inventory: LongInventoryOption = None,
    lab: LabOption = None,
    kind: TypeOption = "",
    *,
    lines: LineOptions,
    container: Annotated[str, typer.Option("--container", "-c", hidden=True)] = "",
) -> None:
    """Print the output of a batch job.

    Prints the output of its first instance (rank 0; the launcher of mpi), or of the given instances.

    Logs remain available until the job is deleted, even if its containers are removed.

    \b
    Examples:
      provision logs mnist
      provision logs -f mnist
      provision logs mnist -t 5
      provision logs mnist -i mnist-worker-0
      provision logs mnist --all --since 2m --timestamps
    """
    from provision.cli.following import follow as follow_to_the_end
    from provision.cli.following import writer
    from provision.workflow.job_watch import exit_code

    del container
    _refuse_combinations(lines)
    engine = engine_of(inventory, lab, through_agent=True)
    if lines.follow:
        require(engine, "FOLLOW", "provision logs --follow")
    with patience("querying the nodes"):
        job = engine.get(name)
    insist_on_kind(job, kind)
    request = _request(job, lines)
    if lines.follow:
        raise typer.Exit(exit_code(follow_to_the_end(engine, job, request)))
    if not job.attempt:
        info(f"{name} is {job.status} and has no output yet" + (f": {job.reason}" if job.reason else ""))
        return
    engine.logs(job, request, writer(named=lines.every or len(request.instances) > 1))


def _refuse_combinations(lines: LineOptions) -> None:
    if lines.tail < -1:
        raise UsageError(f"--tail {lines.tail}: not a number of lines; use -1 for all")
    if bool(lines.instances) + (lines.rank is not None) + lines.every > 1:
        raise UsageError("--instance, --rank and --all exclude each other", remedy="Use one of them.")


def _request(job: JobRecord, lines: LineOptions) -> LogRequest:
    from provision.jobs.engines.base import LogRequest

    attempt = _attempt(job, lines.attempt, previous=lines.previous)
    return LogRequest(
        instances=_instances(job, lines.instances or [], lines.rank, attempt),
        every=lines.every,
        follow=lines.follow,
        tail=lines.tail,
        since=_since(lines.since, lines.since_time),
        timestamps=lines.timestamps,
        attempt=attempt,
    )


def _instances(job: JobRecord, wanted: list[str], rank: int | None, attempt: int) -> tuple[str, ...]:
    """Return the requested instances; only the nodes know those of an earlier attempt.

    Raises:
        NotFound: The last attempt has no such instance or rank.
    """
    from provision.model.job import Kind

    name = job.spec.name
    if attempt not in {0, job.attempt}:
        if rank is None:
            return tuple(wanted)
        workers = rank if job.spec.kind is not Kind.PYTORCH else rank - 1
        return (f"worker-{workers}" if workers >= 0 else "master-0",)
    known = [assignment.instance for assignment in job.assignments]
    if rank is not None:
        instances = [
            assignment.instance
            for assignment in job.assignments
            if assignment.rank == rank and assignment.role != "launcher"
        ]
        if not instances:
            raise NotFound(f"{name} has no rank {rank}", remedy=f"`provision get {name}` lists its instances.")
        return (instances[0],)
    full = [f"{name}-{word}" if f"{name}-{word}" in known else word for word in wanted]
    for instance in full:
        if known and instance not in known:
            raise NotFound(
                f"{name} has no instance {instance}",
                remedy=f"`provision get {name}` lists them: {', '.join(known[:8])}{', ...' if len(known) > 8 else ''}",  # noqa: PLR2004
            )
    return tuple(full)


def _since(since: str, since_time: str) -> float:
    if since and since_time:
        raise UsageError("--since and --since-time exclude each other", remedy="Use one of them.")
    if since:
        return now() - seconds(since, "--since")
    try:
        return datetime.fromisoformat(since_time).timestamp() if since_time else 0.0
    except ValueError as error:
        raise UsageError(
            f"--since-time {since_time}: not a time", remedy="Write it as 2026-01-31T12:00:00Z."
        ) from error


def _attempt(job: JobRecord, attempt: int, *, previous: bool) -> int:
    wanted = job.attempt - 1 if previous else attempt
    if previous and wanted < 1:
        raise NotFound(f"{job.spec.name} has no earlier attempt")
    if wanted < 0 or wanted > job.attempt:
        raise NotFound(f"{job.spec.name} has {job.attempt} attempts, and no attempt {wanted}")
    return wanted
