"""``provision stop``: end batch jobs in good order."""

from __future__ import annotations

from typing import Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, print_json, show
from provision.cli.job_options import engine_of, now, seconds
from provision.cli.levels import info, patience

__all__ = ["stop"]


def stop(
    names: Annotated[list[str], typer.Argument(metavar="JOB...", help="Names of jobs.")],
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="Between SIGTERM and SIGKILL.", show_default=False)
    ] = "15s",
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """End batch jobs: SIGTERM, time to save, SIGKILL. Their records and logs stay.

    A job that waits is taken out of the queue; one that is over stays as it is.

    \b
    Examples:
      provision stop mnist
      provision stop mnist vgg --grace 2m
    """
    from provision.report.job_document import job_document

    runner = engine_of(inventory, lab)
    pause = seconds(grace, "--grace")
    done = []
    for name in names:
        with patience(f"stopping {name}"):
            done.append(runner.stop(name, info, grace=pause))
        if not as_json:
            show(f"{name} {done[-1].status}")
    if as_json:
        print_json([job_document(job, now(), runner.name) for job in done])
