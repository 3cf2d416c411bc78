"""``provision restart``: start a batch job again."""

from __future__ import annotations

from typing import Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, YesOption, print_json, show
from provision.cli.job_options import JobArgument, engine_of, now
from provision.cli.job_owner import ask_about_owner
from provision.cli.levels import info, patience

__all__ = ["restart"]


def restart(
    name: JobArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show its output until it ends; exit with its code.")
    ] = False,
    yes: YesOption = False,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a batch job again.

    It becomes the job's next attempt. A running job is stopped first, a held job
    starts. A job of another owner is restarted after a question; without a terminal
    only with --yes. The exit code is 7 when a node has not confirmed the end of the
    running attempt: restart the job again then.

    The logs of its earlier attempts stay: provision logs NAME --attempt N.

    \b
    Examples:
      provision restart mnist
      provision restart mnist --follow
    """
    from provision.cli.following import follow as follow_to_the_end
    from provision.report.job_document import job_document
    from provision.workflow.job_watch import exit_code

    runner = engine_of(inventory, lab)
    ask_about_owner(runner, name, "Restart", yes=yes)
    with patience(f"restarting {name}"):
        job = runner.restart(name, info)
    info(f"{name} is {job.status}, attempt {job.attempt}" + (f": {job.reason}" if job.reason else ""))
    if follow:
        raise typer.Exit(exit_code(follow_to_the_end(runner, job)))
    if as_json:
        print_json(job_document(job, now(), runner.name))
    else:
        show(f"{name} {job.status}")
