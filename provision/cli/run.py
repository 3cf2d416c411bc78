"""``provision run``: start an MPI job across the nodes' containers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import (
    AllowDegradedOption,
    AskBecomePassOption,
    InventoryOption,
    LabOption,
    LimitOption,
    YesOption,
    ask_become_password,
    cluster_from,
    confirm,
    say,
    take_degraded,
)
from provision.errors import HostNotTrusted, Interrupted, LaunchError, ProvisionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from provision.facts import NodeFacts
    from provision.hostfiles import HostEntry
    from provision.jobs import JobRequest, Plan
    from provision.model import Cluster, Secret

__all__ = ["run"]


def run(
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
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Go on without nodes that cannot take ranks, each named on stderr.")
    ] = False,
    allow_degraded: AllowDegradedOption = False,
    yes: YesOption = False,
    ask_become_pass: AskBecomePassOption = False,
) -> None:
    """Run a program with one rank per slot in the containers of all nodes, by mpirun.

    Slots are GPUs; on a node without GPUs the variable cluster_slots, or its CPUs. Output comes live, every
    line with its rank; the exit code is the program's own, or 125 when it could not be started. Ctrl-C, or the
    end of this command by any other way, ends the job on all nodes.

    A node that cannot take ranks stops the job before it starts, unless --limit leaves it out or --allow-missing
    goes on without it. A node whose host key is not the known one always stops it.
    So does, in the same way, a node on which GPUDirect RDMA did not come up as it is recorded (check
    peer_memory.boot), until that check passes; --allow-degraded takes it all the same.

    \b
    Examples:
      provision run -- provision-smoke
      provision run --lab demo -n 4 -- hostname
      provision run --sync . --env LR=0.1 --env WANDB_API_KEY -- python3 train.py
      provision run --limit 'gpu[1:4]' --dry-run -- python3 train.py
    """
    from provision import jobs

    with _before_the_start():
        environment = _environment(env or ())
        cluster = cluster_from(inventory, lab, become_password=ask_become_password(ask=ask_become_pass))
        entries, degraded = _entries(cluster, limit, allow_missing=allow_missing, allow_degraded=allow_degraded)
        take_degraded(cluster, "run --dry-run" if dry_run else "run", degraded)
        plan = _plan(_request(cluster, entries, tuple(command), ranks, sync, environment, workdir), dry_run, yes)
        if dry_run:
            sys.stdout.write(jobs.dry_run(plan))
            return
    raise typer.Exit(jobs.run(plan, _write))


run.typer_settings = {"context_settings": {"allow_interspersed_args": False}}  # type: ignore[attr-defined]


@contextmanager
def _before_the_start() -> Iterator[None]:
    """Make every failure one of the start: scripts tell by 125 that the program never ran."""
    try:
        yield
    except (LaunchError, Interrupted):
        raise
    except ProvisionError as error:
        raise LaunchError(error.message, node=error.node, remedy=error.remedy, output=error.output) from error


def _plan(request: JobRequest, dry_run: bool, yes: bool) -> Plan:
    from provision import jobs

    if request.sync is not None and not dry_run:
        for line in jobs.sync(request, lambda question: confirm(question, yes=yes)):
            say(line)
    return jobs.prepare(request)


def _entries(
    cluster: Cluster, limit: str | None, *, allow_missing: bool, allow_degraded: bool
) -> tuple[list[HostEntry], list[tuple[str, str]]]:
    """Return the nodes that get ranks, and which of them should take none and why.

    LaunchError when one that was asked for cannot take ranks, unless that is allowed.
    """
    from provision import workflow

    full = workflow.with_defaults(cluster)
    found = workflow.probe(workflow.chosen(full, limit), names=[node.name for node in full.nodes])
    entries, left_out = workflow.host_entries(full, found, allow_degraded=allow_degraded)
    degraded = workflow.degraded(full, found)
    distrusted = [(name, why) for name, why in left_out if isinstance(found[name], HostNotTrusted)]
    if distrusted or (left_out and not allow_missing):
        held_back = {} if allow_degraded else {name: verdict.remedy or "" for name, verdict in degraded.items()}
        raise _missing(distrusted or left_out, found, held_back)
    for name, reason in left_out:
        say(f"left out: {name}: {reason}")
    if not entries:
        raise LaunchError(
            "no node can take ranks",
            remedy="`provision verify` says what each node lacks; `provision apply` mends it",
            output="\n".join(f"{name}: {reason}" for name, reason in left_out),
        )
    listed = {entry.name for entry in entries}
    return entries, [(name, verdict.reason) for name, verdict in degraded.items() if name in listed]


def _missing(
    left_out: list[tuple[str, str]],
    found: Mapping[str, NodeFacts | ProvisionError],
    held_back: Mapping[str, str] | None = None,
) -> LaunchError:
    """Name every node that was asked for and cannot take ranks, and what to do about the first.

    `held_back` has the remedies of those that would be taken with --allow-degraded.
    """
    name, reason = left_out[0]
    error, held = found[name], held_back or {}
    known = error.remedy if isinstance(error, ProvisionError) else held.get(name)
    remedy = known or f"`provision verify --limit {name}` says what it lacks; `provision apply --limit {name}` mends it"
    if not any(isinstance(found[node], HostNotTrusted) for node, _ in left_out):
        remedy = remedy.rstrip(".") + "; or go on without it: --allow-missing, or --limit with the others"
        remedy += "; or with it as it is: --allow-degraded" if name in held else ""
    if len(left_out) == 1:
        return LaunchError(reason, node=name, remedy=remedy)
    lines = "\n".join(f"  {node}: {why}" for node, why in left_out)
    return LaunchError(f"{len(left_out)} of {len(found)} nodes cannot take ranks:\n{lines}", remedy=remedy)


def _request(
    cluster: Cluster,
    entries: list[HostEntry],
    command: tuple[str, ...],
    ranks: int | None,
    sync: Path | None,
    environment: dict[str, Secret],
    workdir: str | None,
) -> JobRequest:
    from provision import workflow
    from provision.jobs import JobRequest, new_job_id

    full = workflow.with_defaults(cluster)
    names = [entry.name for entry in entries]
    variables = {node.name: node.variables for node in full.nodes}
    wanted = str(variables[names[0]].get("cluster_head") or names[0])
    head = wanted if wanted in names else names[0]
    for name in names:
        _refuse_templates(name, variables[name])
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


def _refuse_templates(name: str, variables: Mapping[str, object]) -> None:
    """A name that only Ansible could make, on the node, would be taken literally."""
    from provision.facts import plain

    for key in ("training_container_name", "cluster_data_networks", "cluster_head"):
        if not plain(variables.get(key)):
            raise LaunchError(
                f"{key} cannot be resolved without Ansible: {variables[key]}",
                node=name,
                remedy="Write it so that it needs no facts of the node.",
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
