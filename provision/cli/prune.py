"""``provision prune``: forget batch jobs that have been over for long."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, print_json, show
from provision.cli.job_options import AllOption, engine_of, now, one_by_one, say_missing, seconds, survey_code
from provision.cli.levels import info, patience
from provision.errors import NodeUnreachable, NotFound, UsageError

__all__ = ["prune"]


def prune(
    since: Annotated[str, typer.Option("--since", "-s", metavar="TIME", help="Over for longer: 30m, 12h, 7d.")],
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATUS,...", help="Only succeeded, failed or stopped ones."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say which; delete nothing.")] = False,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    all_namespaces: AllOption = False,
) -> None:
    """Delete batch jobs that ended long ago.

    Deletes those that ended longer ago than TIME, with their logs; never one that waits or runs.

    \b
    Examples:
      provision prune --since 7d --dry-run
      provision prune -s 12h --status failed,stopped
    """
    from provision.workflow.job_watch import aged_out

    del all_namespaces
    if not since.strip():
        raise UsageError("--since has no value", remedy="Write how long jobs have been over: --since 7d.")
    limit = seconds(since, "--since")
    words = [word for text in status or () for word in text.split(",") if word]
    runner = engine_of(inventory, lab)
    with patience("asking the nodes"):
        survey = runner.jobs()
    say_missing(survey)
    head = getattr(runner, "head", "")
    if head in survey.unreachable:
        raise NodeUnreachable(
            f"{head}, which keeps the records of jobs, does not answer: {survey.unreachable[head]}",
            remedy="nothing is deleted: what waits or runs cannot be told from what is over without it",
        )
    names = [job.id if job.displaced else job.spec.name for job in aged_out(survey.jobs, limit, now(), words)]
    gone: list[str] = []

    def forget(name: str) -> None:
        if not dry_run:
            with patience(f"deleting {name}"), suppress(NotFound):  # somebody else has deleted it just now
                runner.delete(name, info)
            gone.append(name)
        if not as_json:
            show(f"{name} {'would be deleted' if dry_run else 'deleted'}")

    code = one_by_one(names, forget)
    if as_json:
        print_json({"deleted": gone, "found": names})
    elif not names:
        info(f"no job has been over for longer than {since}")
    raise typer.Exit(code or survey_code(survey))
