"""``provision queue``: waiting batch jobs."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, inventory_from, print_json, show
from provision.cli.completion import complete_jobs
from provision.cli.job_options import (
    UserOption,
    all_jobs,
    engine_of,
    now,
    one_by_one,
    say_missing,
    seconds,
    survey_code,
)
from provision.cli.levels import info, patience, warn
from provision.errors import UsageError

if TYPE_CHECKING:
    from provision.jobs.engines.base import JobEngine

app = typer.Typer(
    rich_markup_mode=None,
    help="""List and start waiting batch jobs.

\b
Examples:
  provision queue list
  provision queue run
  provision queue release mnist
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
        print_json({"started": list(started)})
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
