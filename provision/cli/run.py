"""``provision run``: start an MPI job across the nodes' containers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import (
    AskBecomePassOption,
    InventoryOption,
    LabOption,
    LimitOption,
    YesOption,
    ask_become_password,
    cluster_from,
    confirm,
    say,
)
from provision.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provision.jobs import JobRequest
    from provision.model import Cluster, Secret

__all__ = ["run"]


def run(  # noqa: PLR0917 - one parameter for each option
    command: Annotated[list[str], typer.Argument(metavar="[--] CMD...", help="The program and its arguments.")],
    inventory: InventoryOption = None,
    lab: LabOption = None,
    limit: LimitOption = None,
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", metavar="NP", help="Ranks; all slots without it.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command and the host file, start nothing.")
    ] = False,
    sync: Annotated[
        Path | None, typer.Option("--sync", metavar="DIR", help="First copy DIR to the same path in every container.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="K[=V]", help="Give every rank this variable; without =V, yours."),
    ] = None,
    workdir: Annotated[
        str | None,
        typer.Option("--workdir", "-w", metavar="D", help="Start every rank in this folder of the container."),
    ] = None,
    yes: YesOption = False,
    ask_become_pass: AskBecomePassOption = False,
) -> None:
    """Run a program with one rank per slot in the containers of all nodes, by mpirun.

    Slots are GPUs; on a node without GPUs the variable cluster_slots, or its CPUs. Output comes live, every
    line with its rank; the exit code is the program's own, or 125 when it could not be started. Ctrl-C, or the
    end of this command by any other way, ends the job on all nodes.

    \b
    Examples:
      provision run -- provision-smoke
      provision run --lab demo -n 4 -- hostname
      provision run --sync . --env LR=0.1 --env WANDB_API_KEY -- python3 train.py
      provision run --limit 'gpu[1:4]' --dry-run -- python3 train.py
    """
    from provision import jobs

    environment = _environment(env or ())
    cluster = cluster_from(inventory, lab, become_password=ask_become_password(ask=ask_become_pass))
    request = _request(cluster, limit, tuple(command), ranks, sync, environment, workdir)
    if dry_run:
        sys.stdout.write(jobs.dry_run(jobs.prepare(request)))
        return
    if request.sync is not None:
        for line in jobs.sync(request, lambda question: confirm(question, yes=yes)):
            say(line)
    plan = jobs.prepare(request)
    raise typer.Exit(jobs.run(plan, _write))


run.typer_settings = {"context_settings": {"allow_interspersed_args": False}}  # type: ignore[attr-defined]


def _request(
    cluster: Cluster,
    limit: str | None,
    command: tuple[str, ...],
    ranks: int | None,
    sync: Path | None,
    environment: dict[str, Secret],
    workdir: str | None,
) -> JobRequest:
    from provision import workflow
    from provision.jobs import JobRequest, new_job_id

    full = workflow.with_defaults(cluster)
    nodes = workflow.chosen(full, limit)
    entries, left_out = workflow.host_entries(full, workflow.probe(nodes, names=[node.name for node in full.nodes]))
    for name, reason in left_out:
        say(f"left out: {name}: {reason}")
    if not entries:
        reasons = "\n".join(f"{name}: {reason}" for name, reason in left_out)
        raise LaunchError(
            "no node can take ranks",
            remedy="`provision verify` says what each node lacks; `provision apply` mends it",
            output=reasons,
        )
    names = [entry.name for entry in entries]
    variables = {node.name: node.variables for node in full.nodes}
    wanted = str(variables[names[0]].get("cluster_head") or names[0])
    head = wanted if wanted in names else names[0]
    return JobRequest(
        command=command,
        entries=tuple(entries),
        nodes={node.name: node for node in full.nodes},
        head=head,
        containers={name: str(variables[name].get("training_container_name")) for name in names},
        networks=tuple(str(network) for network in variables[head].get("cluster_data_networks") or ()),
        ranks=ranks,
        workdir=workdir,
        sync=sync.resolve() if sync else None,
        environment=environment,
        job=new_job_id(),
    )


def _environment(words: Sequence[str]) -> dict[str, Secret]:
    """``K=V`` as it stands; ``K`` from this process's environment, so that secrets need not be typed."""
    from provision.commands.shell import is_environment_name
    from provision.model import Secret

    values: dict[str, Secret] = {}
    for word in words:
        name, given, value = word.partition("=")
        if not is_environment_name(name) or name in {"PROVISION_JOB", "PROVISION_NODE"}:
            raise UsageError(f"--env {name}: this is no name of a variable that can be set")
        if not given and name not in os.environ:
            raise UsageError(
                f"--env {name}: {name} is not set here", remedy=f"export {name}, or give --env {name}=VALUE"
            )
        values[name] = Secret(value if given else os.environ[name])
    return values


def _write(stream: str, line: bytes) -> None:
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.buffer.write(line)
    target.buffer.flush()
