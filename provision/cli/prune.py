"""``provision prune``: delete batch jobs that ended long ago."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, YesOption, confirm, print_json, show
from provision.cli.job_options import AllOption, all_jobs, engine_of, now, one_by_one, say_missing, seconds, survey_code
from provision.cli.levels import info, patience
from provision.errors import NodeUnreachable, NotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provision.model.job import JobRecord
    from provision.model.job_views import JobPage
    from provision.report.json_documents.jobs import PrunedJobs


def prune(
    since: Annotated[str, typer.Option("--since", "-s", metavar="TIME", help="Ended before: 30m, 12h, 7d ago.")],
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATUS,...", help="Only succeeded, failed or stopped ones."),
    ] = None,
    all_users: Annotated[
        bool, typer.Option("--all-users", help="Also jobs of other users, after a confirmation.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the jobs; delete nothing.")] = False,
    yes: YesOption = False,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    all_namespaces: AllOption = False,
) -> None:
    """Delete batch jobs that ended long ago.

    Deletes your jobs that ended longer ago than TIME, with their logs; unfinished jobs are never deleted.

    Jobs of other users are preserved. With --all-users they are deleted too, after a confirmation; without a terminal
    only with --yes (otherwise exit code 2). The key that signed a job identifies its owner.

    \b
    Examples:
      provision prune --since 7d --dry-run
      provision prune -s 12h --status failed,stopped
      provision prune -s 30d --all-users --yes
    """
    from provision.workflow.job_watch import aged_out

    del all_namespaces
    limit, words = _age(since), _statuses(status or ())
    engine = engine_of(inventory, lab)
    with patience("querying the nodes"):
        survey = all_jobs(engine)
    _require_records(survey)
    aged = aged_out(survey.jobs, limit, now(), words)
    own = set(engine.owned(aged))
    others = [job for job in aged if job.id not in own]
    if others and all_users and not dry_run:
        confirm(_question(others), yes=yes)
    names = [job.reference for job in aged if all_users or job.id in own]
    document: PrunedJobs = {"deleted": [], "found": names, "ofOthers": [job.spec.name for job in others]}

    def forget(name: str) -> None:
        if not dry_run:
            with patience(f"deleting {name}"), suppress(NotFound):  # another command has just deleted it
                engine.delete(name, info)
            document["deleted"].append(name)
        if not as_json:
            show(f"{name} {'would be deleted' if dry_run else 'deleted'}")

    code = one_by_one(names, forget)
    if as_json:
        print_json(document)
    elif not names:
        info(f"no job {'' if all_users else 'of yours '}ended longer ago than {since}")
    _say_others(others, all_users=all_users)
    raise typer.Exit(code or survey_code(survey))


def _require_records(page: JobPage) -> None:
    """Raise NodeUnreachable if the records of jobs are missing."""
    say_missing(page)
    if page.incomplete:
        raise NodeUnreachable(
            page.incomplete,
            remedy="Nothing was deleted, because finished jobs cannot be distinguished from others. Try again later.",
        )


def _statuses(texts: Sequence[str]) -> list[str]:
    """Return the given statuses; an invalid one is refused before a node is connected to."""
    from provision.workflow.job_watch import aged_out

    words = [word for text in texts for word in text.split(",") if word]
    aged_out((), 0.0, 0.0, words)
    return words


def _age(since: str) -> float:
    if not since.strip():
        raise UsageError("--since has no value", remedy="Specify the time since the end: --since 7d.")
    return seconds(since, "--since")


def _say_others(others: Sequence[JobRecord], *, all_users: bool) -> None:
    if others and not all_users:
        count = f"{len(others)} job{'s' * (len(others) != 1)}"
        info(f"{count} of other users preserved; to delete them too, add --all-users")


def _question(others: Sequence[JobRecord]) -> str:
    owners = sorted({job.owner or "unknown users" for job in others})
    more = f" and {len(owners) - 3} more" if owners[3:] else ""
    one = len(others) == 1
    subject = "1 of these jobs is" if one else f"{len(others)} of these jobs are"
    return f"{subject} owned by other users ({', '.join(owners[:3])}{more}). Delete {'it' if one else 'them'}?"
