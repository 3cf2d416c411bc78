"""``provision events``: events of batch jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, print_json, show
from provision.cli.completion import complete_jobs
from provision.cli.job_options import all_jobs, engine_of, now, say_missing, survey_code
from provision.cli.levels import info, patience


def events(
    name: Annotated[
        str,
        typer.Argument(metavar="[JOB]", help="Only of this job. [all unfinished jobs]", autocompletion=complete_jobs),
    ] = "",
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the events of a batch job.

    The oldest come first. They show why a job waits.

    \b
    Examples:
      provision events mnist
      provision events
    """
    from provision.report.job_detail import events_text
    from provision.report.job_document import event_documents

    engine = engine_of(inventory, lab, through_agent=True)
    code = 0
    with patience("querying the nodes"):
        if name:
            jobs = [engine.get(name)]
        else:
            survey = all_jobs(engine)
            say_missing(survey)
            code = survey_code(survey)
            jobs = [engine.get(job.reference) for job in survey.jobs if not job.status.over]
    if as_json:
        print_json([event for job in jobs for event in event_documents(job)])
    elif any(job.events for job in jobs):
        show(events_text(jobs, now()))
    else:
        info(f"{name} has no events" if name else "no waiting or running job has events")
    raise typer.Exit(code)
