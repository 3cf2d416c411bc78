"""``provision list``: all batch jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption
from provision.cli.job_options import (
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
from provision.cli.levels import patience, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provision.model.job import JobRecord
    from provision.model.job_views import JobPage

_EVERY = 2.0
RECENT = 500
"""Tables leave out jobs that have ended if so many are newer."""


def list_(
    inventory: InventoryOption = None,
    lab: LabOption = None,
    kind: TypeOption = "",
    labels: Annotated[
        list[str] | None, typer.Option("--selector", "-l", metavar="K=V", help="Only with this label. Repeatable.")
    ] = None,
    status: Annotated[str, typer.Option("--status", metavar="STATUS", help="Only with this status.")] = "",
    user: UserOption = "",
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=0, help="Leave out ended jobs older than N others. 0: none."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every two seconds.")] = False,
    form: FormOption = "",
    as_json: JsonOption = False,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", "--all", hidden=True)] = False,
) -> None:
    """List batch jobs.

    The newest come first; finished jobs are listed too. Tables without a filter show the newest 500 of a long
    history, and all jobs that have not ended.

    NODE is the node of the first instance of a job that has not ended. -o wide
    adds GPUs and duration; -o json and yaml have arena's keys.

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

    del all_namespaces
    wanted = pairs(labels, "--selector")
    chosen_jobs((), kind=kind, status=status)  # an invalid word is refused before a node is connected to
    recent = _limit(limit, form, as_json, kind, labels, status, user)
    cluster, engine = cluster_and_engine(inventory, lab, through_agent=True)
    while True:
        with patience("querying the nodes"):
            survey = all_jobs(engine, recent=recent)
        store_job_names(cluster.inventory, (job.spec.name for job in job_list.newest_first(survey.jobs)))
        matches = chosen_jobs(survey.jobs, kind=kind, labels=wanted, user=user, status=status)
        jobs, moment = job_list.newest_first(matches), now()
        present(
            form,
            as_json=as_json,
            document=lambda: job_document.survey_documents(jobs, moment, engine.name),  # noqa: B023 - called at once
            text=lambda: _text(form, jobs, moment),  # noqa: B023
        )
        _warn(survey)
        if not watch:
            break
        time.sleep(_EVERY)
    raise typer.Exit(survey_code(survey))


def _limit(limit: int | None, form: str, *scripts_and_filters: object) -> int:
    """Return ``--limit`` or its default: scripts and searches get all jobs."""
    if limit is not None:
        return limit
    return RECENT if form in {"", "wide"} and not any(scripts_and_filters) else 0


def _warn(survey: JobPage) -> None:
    """Report nodes that did not answer, and jobs that are left out."""
    say_missing(survey)
    if survey.older:
        warn(f"{survey.older} older jobs that have ended are not listed; list them with --limit 0")


def _text(form: str, jobs: Sequence[JobRecord], moment: float) -> str:
    from provision.report import job_list

    if form == "name":
        return job_list.names_text(jobs)
    return (job_list.wide_text if form == "wide" else job_list.list_text)(jobs, moment)
