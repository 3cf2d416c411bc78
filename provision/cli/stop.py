"""``provision stop``: stop batch jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, YesOption, print_json, show
from provision.cli.job_options import JobsArgument, engine_of, now, one_by_one, report, seconds
from provision.cli.job_owner import ask_about_owner
from provision.cli.levels import info, patience
from provision.errors import NodeUnreachable, TimedOut

if TYPE_CHECKING:
    from provision.model.job import JobRecord


def stop(
    names: JobsArgument,
    grace: Annotated[
        str,
        typer.Option(
            "--grace",
            metavar="TIME",
            help="Time between SIGTERM and SIGKILL; a number without a unit is seconds.",
            show_default=False,
        ),
    ] = "15s",
    yes: YesOption = False,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop batch jobs; keep their records and logs.

    Their processes get SIGTERM, time to save, and SIGKILL. A job of another owner is stopped after a confirmation;
    without a terminal only with --yes.

    A waiting job is removed from the queue. A finished job is not changed. With
    several names each job is stopped, and the exit code is that of the first one
    that could not be stopped: 2 another owner's job and not confirmed, 3 no such
    job, 6 it did not end in time, 7 a node has not confirmed the end. A job with
    such a node is STOPPING: the stop request is stored,
    and executed when the node answers again.

    \b
    Examples:
      provision stop mnist
      provision stop mnist vgg --grace 2m
      provision stop job-of-somebody --yes
    """
    from provision.report.job_document import job_document

    pause = seconds(grace, "--grace", bare=True)
    engine = engine_of(inventory, lab, through_agent=True)
    done: list[JobRecord] = []

    def end(name: str) -> None:
        ask_about_owner(engine, name, "Stop", yes=yes)
        with patience(f"stopping {name}"):
            job = engine.stop(name, info, grace=pause)
        done.append(job)
        if not as_json:
            show(f"{name} {job.status}")
        _check_end(job)

    try:
        code = one_by_one(names, end)
    except (TimedOut, NodeUnreachable) as error:
        if not as_json or not done:
            raise
        report(error)
        code = error.exit_code
    if as_json:
        print_json([job_document(job, now(), engine.name) for job in done])
    raise typer.Exit(code)


def _check_end(job: JobRecord) -> None:
    """Return if the job has ended.

    Raises:
        NodeUnreachable: An unreachable node has not confirmed the end.
        TimedOut: A reachable node has not confirmed it.
    """
    from provision.model.job import JobStatus
    from provision.report.node_names import in_short

    if job.status.over and not (job.status is JobStatus.FAILED and job.unconfirmed):
        return
    name, away = job.spec.name, [node for node in job.unconfirmed if node in job.silent]
    where = in_short(away or job.unconfirmed)
    if job.status is JobStatus.FAILED:
        raise NodeUnreachable(
            f"{name} is FAILED and is being deleted: {where} has not confirmed that nothing is left of it",
            remedy=f"It is carried out when {where} answers again.",
        )
    if away:
        raise NodeUnreachable(
            f"{name} is {job.status} and may still run: {where} does not answer and has not confirmed the end",
            remedy=f"It is carried out when {where} answers again; `provision get {name}` shows the state.",
        )
    raise TimedOut(
        f"{name} is {job.status}: it did not end in time" + (f" on {where}" if where else ""),
        remedy=f"To see why: provision get {name} -e",
    )
