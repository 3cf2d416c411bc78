"""``provision list``: all batch jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption
from provision.cli.job_options import (
    AllOption,
    FormOption,
    TypeOption,
    UserOption,
    all_jobs,
    cluster_and_engine,
    now,
    pairs,
    present,
    say_missing,
    survey_code,
)
from provision.cli.levels import patience

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provision.model.job import JobRecord

_EVERY = 2.0


def list_(
    inventory: InventoryOption = None,
    lab: LabOption = None,
    kind: TypeOption = "",
    labels: Annotated[
        list[str] | None, typer.Option("--selector", "-l", metavar="K=V", help="Only with this label. Repeatable.")
    ] = None,
    status: Annotated[str, typer.Option("--status", metavar="STATUS", help="Only with this status.")] = "",
    user: UserOption = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every two seconds.")] = False,
    form: FormOption = "",
    as_json: JsonOption = False,
    every: Annotated[bool, typer.Option("--all", hidden=True)] = False,
    all_namespaces: AllOption = False,
) -> None:
    """List batch jobs.

    The newest come first; finished jobs are listed too.

    NODE is the node of the first instance. -o wide adds GPUs and duration; -o json and yaml have arena's keys.

    \b
    Examples:
      provision list
      provision list -T pytorchjob -l team=vision
      provision list -u alice,bob --status running
      provision list -o wide --watch
      provision ls -o name --status failed
    """
    from provision.report import job_document, job_list
    from provision.workflow.job_names import store_job_names
    from provision.workflow.job_watch import chosen_jobs

    del every, all_namespaces
    wanted = pairs(labels, "--selector")
    chosen_jobs((), kind=kind, status=status)  # an invalid word is refused before a node is connected to
    cluster, engine = cluster_and_engine(inventory, lab, through_agent=True)
    while True:
        with patience("querying the nodes"):
            survey = all_jobs(engine)
        store_job_names(cluster.inventory, (job.spec.name for job in job_list.newest_first(survey.jobs)))
        matches = chosen_jobs(survey.jobs, kind=kind, labels=wanted, user=user, status=status)
        jobs, moment = job_list.newest_first(matches), now()
        present(
            form,
            as_json=as_json,
            document=lambda: job_document.survey_documents(jobs, moment, engine.name),  # noqa: B023 - called at once
            text=lambda: _text(form, jobs, moment),  # noqa: B023
        )
        say_missing(survey)
        if not watch:
            break
        time.sleep(_EVERY)
    raise typer.Exit(survey_code(survey))


def _text(form: str, jobs: Sequence[JobRecord], moment: float) -> str:
    from provision.report import job_list

    if form == "name":
        return job_list.names_text(jobs)
    return (job_list.wide_text if form == "wide" else job_list.list_text)(jobs, moment)
