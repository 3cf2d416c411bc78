"""``provision queue``: waiting batch jobs."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import (
    InventoryOption,
    JsonOption,
    LabOption,
    YesOption,
    cluster_from,
    confirm,
    inventory_from,
    print_json,
    show,
)
from provision.cli.completion import complete_jobs
from provision.cli.job_options import (
    UserOption,
    all_jobs,
    engine_of,
    exit_code_of,
    now,
    one_by_one,
    report,
    say_missing,
    seconds,
    survey_code,
)
from provision.cli.levels import info, patience, warn
from provision.errors import UsageError
from provision.report.node_names import in_short

if TYPE_CHECKING:
    from provision.jobs.engines.base import JobEngine, TakeOver
    from provision.report.json_documents.jobs import StartedJobs

app = typer.Typer(
    rich_markup_mode=None,
    help="""List and start waiting batch jobs.

\b
Examples:
  provision queue list
  provision queue run
  provision queue release mnist
  provision queue migrate --to slurm --dry-run
  provision queue unit | sudo tee /etc/systemd/system/provision-queue.service
""",
)

_SHORTEST = 1.0


@app.callback(invoke_without_command=True)
def queue(
    ctx: typer.Context,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """List waiting batch jobs, or start those that fit. Without a verb the same as `queue list`."""
    if ctx.invoked_subcommand is None:
        _show_waiting(inventory, lab, "", as_json=as_json)


@app.command("list")
def list_(
    user: UserOption = "",
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """List waiting batch jobs and why each waits.

    They are listed in scheduling order.

    \b
    Examples:
      provision queue list
      provision queue list -u alice --json
    """
    _show_waiting(inventory, lab, user, as_json=as_json)


def _show_waiting(inventory: str | None, lab: str | None, user: str, *, as_json: bool) -> None:
    from provision.model.job import JobStatus
    from provision.report.job_document import survey_documents
    from provision.report.job_list import queue_text
    from provision.workflow.job_watch import chosen_jobs

    engine = engine_of(inventory, lab, through_agent=True)
    with patience("querying the nodes"):
        survey = all_jobs(engine)
    say_missing(survey)
    mine = chosen_jobs(survey.jobs, user=user)
    waiting = [job for job in mine if job.status in {JobStatus.PENDING, JobStatus.QUEUING}]
    if as_json:
        print_json(survey_documents(waiting, now(), engine.name))
    elif waiting:
        show(queue_text(waiting, now()))
    else:
        info("no job waits")
    raise typer.Exit(survey_code(survey))


@app.command("run")
def run(
    daemon: Annotated[bool, typer.Option("--daemon", help="Continue until SIGTERM.")] = False,
    every: Annotated[
        str, typer.Option("--every", metavar="TIME", help="With --daemon: minimum time between two scheduling passes.")
    ] = "",
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start the waiting jobs that fit.

    Also starts jobs that are retried.

    Deletes records of jobs that ended longer ago than their --ttl-after-finished.
    With --daemon it continues: the nodes report when GPUs become free, a job ends or a new one waits, which starts a
    scheduling pass; without such reports, one starts every 15 s while a job waits, otherwise every 30 s. With --every
    only this interval is used. The reason for a failed pass (a node is unreachable) is reported once, and the next
    pass follows.

    \b
    Examples:
      provision queue run
      provision queue run --daemon
      provision queue run --daemon --every 1m
    """
    pause = _pause(every)
    engine = engine_of(inventory, lab)
    if daemon:
        _serve(engine, pause)
        return
    with patience("probing the nodes"), engine.maintenance() as maintenance:
        started = maintenance.run(info).started
    if as_json:
        document: StartedJobs = {"started": list(started)}
        print_json(document)
    else:
        for name in started:
            show(f"{name} started")
        if not started:
            info("no job was started")


def _pause(every: str) -> float:
    """Return the seconds between two passes; 0 if they depend on the waiting jobs."""
    pause = seconds(every, "--every")
    if every and pause < _SHORTEST:
        raise UsageError(f"--every {every}: must be at least {_SHORTEST:g} s")
    return pause


def _serve(engine: JobEngine, pause: float) -> None:
    """Try until SIGTERM; a second one leaves at once."""
    from provision.workflow.queue_daemon import serve

    stop = threading.Event()

    def end(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGTERM, end)
    try:
        serve(engine, stop, say=info, started=lambda name: show(f"{name} started"), warn=warn, every=pause)
    finally:
        signal.signal(signal.SIGTERM, before)


@app.command("release")
def release(
    names: Annotated[
        list[str], typer.Argument(metavar="JOB...", help="Names of held jobs.", autocompletion=complete_jobs)
    ],
    inventory: InventoryOption = None,
    lab: LabOption = None,
) -> None:
    """Release held jobs.

    Jobs submitted with --hold or --queue start when they fit. A job that already waits or runs is not changed; a
    finished job is an error.

    \b
    Examples:
      provision queue release mnist
    """
    from provision.model.job import JobStatus

    engine = engine_of(inventory, lab, through_agent=True)

    def let_go(name: str) -> None:
        job = engine.get(name)
        if job.status.over:
            raise UsageError(f"{name}: it is not held, it has {job.status}", remedy=f"provision restart {name}")
        if job.status is JobStatus.QUEUING:
            with patience(f"releasing {name}"):
                job = engine.release(name, info)
        show(f"{name} {job.status}")

    raise typer.Exit(one_by_one(names, let_go))


@app.command("migrate")
def migrate(
    to: Annotated[str, typer.Option("--to", metavar="ENGINE", help="The engine that gets the jobs: slurm.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the jobs; change nothing.")] = False,
    yes: YesOption = False,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move waiting jobs to another engine.

    Jobs that wait or are held in the queue of the engine `direct` become jobs of Slurm, in their order. Name, ID,
    owner, specification, signature and stored secrets stay. At no time may both engines start a job. An interrupted
    move is completed by the next one.

    Started jobs are not moved: they finish under the engine `direct`, and Slurm cannot use their nodes before.

    Exit codes: 0 if no waiting job remains, otherwise that of the first job that was not moved: 1 it waits for a job
    that is not in Slurm, or must not start; 2 it has an option that Slurm does not support; 5 it does not fit; 7 a node
    does not answer.

    \b
    Examples:
      provision queue migrate --to slurm --dry-run
      provision queue migrate --to slurm --yes
    """
    from provision.workflow.queue_migration import migration_document, migration_engine

    cluster = cluster_from(inventory, lab, through_login=True)
    engine, is_configured = migration_engine(cluster, to)
    with patience("querying the nodes"):
        result = engine.take_over(info, dry_run=True)
    if result.moved and not dry_run:
        count = len(result.moved)
        info(f"waiting jobs: {in_short([one.job.spec.name for one in result.moved])}")
        confirm(f"Move {count} waiting job{'s' * (count != 1)} to {to}?", yes=yes)
        with patience(f"moving the waiting jobs to {to}"):
            result = engine.take_over(info)
    if as_json:
        print_json(migration_document(result, to, dry_run=dry_run))
    else:
        _show_moved(result, to, dry_run=dry_run)
    for one in result.remaining:
        report(one.error, one.job.spec.name)
    if not is_configured:
        warn(f"the inventory does not choose the engine {to}. Set: cluster_engine: {to}")
    raise typer.Exit(next((exit_code_of(one.error) for one in result.remaining), 0))


def _show_moved(result: TakeOver, to: str, *, dry_run: bool) -> None:
    """Show the jobs that were moved, and those that the engine `direct` has started."""
    from provision.workflow.queue_migration import occupied_nodes

    for one in result.moved:
        name, number = one.job.spec.name, f" as job {one.engine_job}" * bool(one.engine_job)
        show(f"{name} would be moved to {to}" if dry_run else f"{name} moved to {to}{number}")
    if not result.moved and not result.remaining:
        info("no job waits in the queue of the engine direct")
    for job in result.unfinished:
        info(f"{job.spec.name} {job.status}: it finishes under the engine direct")
    nodes = occupied_nodes(result.unfinished)
    if nodes:
        info(f"{to} cannot use {in_short(nodes)} before these jobs end")


def _places() -> str:
    """Return the lines of the unit that locate stored credentials and the signing key as in this shell."""
    lines = ""
    for name in ("XDG_STATE_HOME", "PROVISION_SIGNING_KEY"):
        place = os.environ.get(name, "").replace("\\", r"\\").replace('"', r"\"").replace("%", "%%")
        lines += f'Environment="{name}={place}"\n' if place else ""
    return lines


@app.command("unit")
def unit(
    every: Annotated[
        str, typer.Option("--every", metavar="TIME", help="Minimum time between two scheduling passes.")
    ] = "",
    inventory: InventoryOption = None,
    lab: LabOption = None,
) -> None:
    """Print a systemd unit that starts waiting jobs.

    The unit starts jobs while this machine runs.

    \b
    Examples:
      provision queue unit -i inventories/prod \\
        | sudo tee /etc/systemd/system/provision-queue.service
      sudo systemctl enable --now provision-queue
    """
    import getpass
    from pathlib import Path

    _pause(every)
    path = inventory_from(inventory, lab).resolve()
    program = [sys.executable, "-m", "provision", "queue", "run", "--daemon", "-i", str(path)]
    program += ["--every", every] if every else []
    line = " ".join(shlex.quote(word).replace("%", "%%") for word in program)
    show(
        "[Unit]\n"
        "Description=Start provision's waiting batch jobs\n"
        "Wants=network-online.target\n"
        "After=network-online.target\n\n"
        "[Service]\n"
        f"User={getpass.getuser()}\n"
        f"Environment=HOME={Path.home()}\n{_places()}"
        f"ExecStart={line}\n"
        "Restart=always\n"
        "RestartSec=30\n"
        "TimeoutStopSec=10min\n\n"
        "[Install]\n"
        "WantedBy=multi-user.target"
    )
