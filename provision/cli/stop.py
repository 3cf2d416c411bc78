"""``provision stop``: end batch jobs in good order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, YesOption, print_json, show
from provision.cli.job_options import JobsArgument, engine_of, now, one_by_one, seconds
from provision.cli.job_owner import ask_about_owner
from provision.cli.levels import info, patience
from provision.errors import TimedOut

if TYPE_CHECKING:
    from provision.model.job import JobRecord

__all__ = ["stop"]


def stop(
    names: JobsArgument,
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="Between SIGTERM and SIGKILL.", show_default=False)
    ] = "15s",
    yes: YesOption = False,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop batch jobs; keep their records and logs.

    Their processes get SIGTERM, time to save, and SIGKILL. A job of another owner is stopped after a question; without
    a terminal only with --yes.

    A job that waits is taken out of the queue; one that is over stays as it is. Of
    several each is stopped, whatever becomes of the others, and the exit code is
    that of the first that could not be: 2 another owner's and not confirmed, 3 no such job, 6 its end was not seen in
    time, 7 a node is unreachable.

    \b
    Examples:
      provision stop mnist
      provision stop mnist vgg --grace 2m
      provision stop job-of-somebody --yes
    """
    from provision.report.job_document import job_document

    runner = engine_of(inventory, lab, through_agent=True)
    pause = seconds(grace, "--grace")
    done: list[JobRecord] = []

    def end(name: str) -> None:
        ask_about_owner(runner, name, "Stop", yes=yes)
        with patience(f"stopping {name}"):
            job = runner.stop(name, info, grace=pause)
        _insist_on_the_end(job)
        done.append(job)
        if not as_json:
            show(f"{name} {job.status}")

    code = one_by_one(names, end)
    if as_json:
        print_json([job_document(job, now(), runner.name) for job in done])
    raise typer.Exit(code)


def _insist_on_the_end(job: JobRecord) -> None:
    """Return when the job is over; TimedOut else."""
    if job.status.over:
        return
    away = f"; {', '.join(job.unreachable)} did not answer" if job.unreachable else ""
    raise TimedOut(
        f"{job.spec.name} is still {job.status}: its end was not seen in time{away}",
        remedy=f"`provision get {job.spec.name} -e` shows how it goes on; stop it again, or look at its nodes.",
    )
