"""Options and functions that the verbs of batch jobs share."""

from __future__ import annotations

import re
import stat
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provision.cli.common import ask_become_password, cluster_from, print_json, say, show
from provision.cli.completion import complete_jobs
from provision.cli.engine_option import requested_engine
from provision.cli.levels import warn
from provision.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from provision.errors import ProvisionError
    from provision.jobs.engines.base import JobEngine
    from provision.model import Cluster
    from provision.model.job import JobRecord
    from provision.model.job_views import JobPage

SHORT_TIME_LIMIT = 15.0
"""Seconds; for the state of a job that is shown or decides about a confirmation."""
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.", autocompletion=complete_jobs)]
JobsArgument = Annotated[
    list[str], typer.Argument(metavar="JOB...", help="Names of jobs.", autocompletion=complete_jobs)
]
FormOption = Annotated[
    str, typer.Option("--output", "-o", metavar="FORM", help="wide, json, yaml or name.", show_default=False)
]
TypeOption = Annotated[
    str, typer.Option("--type", "-T", metavar="TYPE", help="Only of this type: mpijob, pytorchjob or runjob.")
]
UserOption = Annotated[
    str,
    typer.Option(
        "--user", "-u", metavar="USER,...", help="Only of these users: NAME, or NAME@HOST.", show_default=False
    ),
]
AllOption = Annotated[
    bool,
    typer.Option(
        "--all-namespaces", "-A", help="For compatibility with arena; there is only one namespace.", hidden=True
    ),
]
LongInventoryOption = Annotated[
    str | None,
    typer.Option(
        "--inventory",
        metavar="PATH",
        envvar="PROVISION_INVENTORY",
        help="Ansible inventory: a file or a folder (-i before the verb).",
    ),
]


def now() -> float:
    """Return the time, in seconds since the epoch."""
    return time.time()


def engine_of(
    inventory: str | None, lab: str | None, *, ask_become_pass: bool = False, through_agent: bool = False
) -> JobEngine:
    """Return the engine of the selected nodes; `through_agent` if the node agent is sufficient."""
    return cluster_and_engine(inventory, lab, ask_become_pass=ask_become_pass, through_agent=through_agent)[1]


def cluster_and_engine(
    inventory: str | None, lab: str | None, *, ask_become_pass: bool = False, through_agent: bool = False
) -> tuple[Cluster, JobEngine]:
    """Return the selected nodes and their engine."""
    from provision.workflow import jobs

    password = ask_become_password(ask=ask_become_pass)
    cluster = cluster_from(inventory, lab, become_password=password, through_agent=through_agent, through_login=True)
    return cluster, jobs.job_engine(cluster, requested_engine())


def all_jobs(engine: JobEngine, *, recent: int = 0) -> JobPage:
    """Return all pages of an engine's jobs as one; `recent` as for `JobEngine.jobs`."""
    from provision.jobs.engines import base

    return base.all_jobs(engine, recent=recent)


def require(engine: JobEngine, capability: str, what: str) -> None:
    """Check that the engine has a capability (a name of `Capability`), which the command or option `what` needs.

    Raises:
        MissingCapability: the engine lacks it.
    """
    from provision.jobs.engines import base

    base.require(engine, base.Capability[capability], what)


def present(form: str, *, as_json: bool, document: Callable[[], Any], text: Callable[[], str]) -> None:
    """Print a document for json and yaml, otherwise a text."""
    if as_json or form == "json":
        print_json(document())
    elif form == "yaml":
        from provision.report.job_document import written

        show(written(document(), "yaml"))
    else:
        show(text())


def one_by_one(names: Sequence[str], act: Callable[[str], None]) -> int:
    """Call a function for several jobs. A failure is reported at once and does not affect the others.

    Returns:
        Exit code of the first failure, 0 without one.

    Raises:
        ProvisionError: The only job failed.
    """
    from provision.errors import ProvisionError

    code = 0
    for name in dict.fromkeys(names):
        try:
            act(name)
        except ProvisionError as error:
            if len(names) == 1:
                raise
            report(error, name)
            code = code or exit_code_of(error)
    return code


def report(error: ProvisionError, name: str = "") -> None:
    """Print an error and its remedy on stderr, with the name of the job if there are several."""
    say(f"error: {name}: {error}" if name else f"error: {error}")
    if error.remedy:
        say(f"hint: {error.remedy}")


def exit_code_of(error: ProvisionError) -> int:
    """Return the exit code of an error of batch jobs: a node that is away has a code of its own among theirs."""
    from provision.errors import ConnectionFailed, NodeUnreachable

    return NodeUnreachable.exit_code if isinstance(error, ConnectionFailed) else error.exit_code


def say_missing(survey: JobPage) -> None:
    """Say which nodes did not answer, on stderr."""
    from provision.report.grouping import reason_lines
    from provision.report.job_list import unreachable_lines

    problems = [(node, text) for node, _, text in (problem.partition(": ") for problem in survey.problems)]
    for line in (*unreachable_lines(survey.unreachable), *reason_lines(problems)):
        warn(line)


def survey_code(survey: JobPage) -> int:
    """Return the exit code of a list: 7 when it is empty because nodes did not answer, else 0."""
    from provision.errors import NodeUnreachable

    return NodeUnreachable.exit_code if survey.unreachable and not survey.jobs else 0


def check_kind(kind: str) -> None:
    """Refuse a --type that does not exist, before a node is asked.

    Raises:
        UsageError: there is no such type.
    """
    from provision.workflow.job_watch import chosen_jobs

    chosen_jobs((), kind=kind)


def insist_on_kind(job: JobRecord, kind: str) -> None:
    """Return when the job is of the kind that --type names, or none is named.

    Raises:
        UsageError: there is no such type.
        NotFound: the job is of another.
    """
    from provision.batch.names import trainer
    from provision.errors import NotFound
    from provision.workflow.job_watch import chosen_jobs

    if not chosen_jobs([job], kind=kind):
        raise NotFound(
            f"there is no {kind} {job.spec.name}: it is a {trainer(job.spec.kind).lower()}", remedy="Leave --type out."
        )


def pairs(words: Sequence[str] | None, flag: str) -> dict[str, str]:
    """Return ``K=V`` words as a mapping.

    Raises:
        UsageError: one of them is none.
    """
    collected = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise UsageError(f"{flag} {word}: this is not NAME=VALUE")
        collected[name] = value
    return collected


def seconds(text: str, flag: str, *, bare: bool = False) -> float:
    """Parse a duration, 0 for an empty text; with `bare` a number without a unit is seconds.

    Raises:
        UsageError: It is not a duration.
    """
    from provision.batch.durations import duration

    if bare and re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text.strip()):
        return float(text)
    try:
        return duration(text) if text else 0.0
    except ValueError as error:
        raise UsageError(f"{flag} {text}: {error}") from error


def private_text(file: Path) -> str:
    """Return the content of a file that only the user can read.

    Raises:
        UsageError: It cannot be read, or other users can read it.
    """
    try:
        mode = file.stat().st_mode
        if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(f"--env-file {file}: other users can read it", remedy=f"chmod 600 {file}")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--env-file {file}: cannot be read: {error}") from error


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable is a secret, by the same rules as in reports."""
    from provision.report.secret_names import is_plain, names_secret

    return {"strong": True, "weak": not is_plain(value)}.get(names_secret(name), False)
