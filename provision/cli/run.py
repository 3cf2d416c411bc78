"""``provision run``: start an MPI job across the nodes' containers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli import run_nodes, run_options, run_placing
from provision.cli.common import (
    AllowDegradedOption,
    AskBecomePassOption,
    InventoryOption,
    JsonOption,
    LabOption,
    LimitOption,
    YesOption,
    ask_become_password,
    cluster_from,
    confirm,
    print_json,
    say,
    show,
    take_degraded,
)
from provision.errors import Interrupted, LaunchError, ProvisionError

if TYPE_CHECKING:
    from provision.facts import NodeFacts
    from provision.jobs import JobRequest, Plan

__all__ = ["run"]


def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="[--] CMD...", help="The program and its arguments.")],
    inventory: InventoryOption = None,
    lab: LabOption = None,
    limit: LimitOption = None,
    ranks: Annotated[
        int | None,
        typer.Option("-n", "--ranks", metavar="NP", help="Ranks; all slots without it.", parser=run_options.ranks),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command and the host file, start nothing.")
    ] = False,
    sync: Annotated[
        Path | None, typer.Option("--sync", metavar="DIR", help="First copy DIR to the same path in every container.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", "-x", metavar="K[=V]", help="Give every rank this variable; without =V, yours."),
    ] = None,
    workdir: Annotated[
        str | None,
        typer.Option("--workdir", "-w", metavar="D", help="Start every rank in this folder of the container."),
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Go on without nodes that cannot take ranks, each named on stderr.")
    ] = False,
    allow_degraded: AllowDegradedOption = False,
    preset: Annotated[
        str, typer.Option("--preset", metavar="NAME", help="A guide's command line: taco or horovod-lightcc.")
    ] = "",
    lightcc: Annotated[
        bool, typer.Option("--lightcc", help="With --preset taco: LightCC as in the guide, compression included.")
    ] = False,
    gdr: Annotated[bool, typer.Option("--gdr", help="With --preset taco: GPUDirect RDMA as in the guide.")] = False,
    fabric: Annotated[
        str, typer.Option("--fabric", metavar="NAME", help="Send over tcp, roce, roce-gdr or ib; else what nodes have.")
    ] = "",
    launcher: Annotated[
        str,
        typer.Option("--launcher", metavar="NAME", help="Who makes the ranks: mpirun, python, torchrun or launch."),
    ] = "mpirun",
    placement: Annotated[
        Path | None,
        typer.Option(
            "--placement", metavar="FILE", help="Give ranks the GPUs, cards and CPUs of FILE (provision place)."
        ),
    ] = None,
    gputopology: Annotated[
        bool, typer.Option("--gputopology", help="Choose the GPUs as provision place does, all of them or none.")
    ] = False,
    gpus: Annotated[
        int | None, typer.Option("--gpus", "-g", min=1, metavar="G", help="With --gputopology: GPUs of each worker.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, metavar="W", help="With --gputopology: how many workers.")
    ] = None,
    own_gpus: Annotated[
        bool,
        typer.Option("--own-gpus", help="With --placement or --gputopology: a rank sees its own GPUs alone."),
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="With --dry-run or --explain: go by the inventory, ask no node.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say where each variable and flag comes from; start nothing.")
    ] = False,
    no_lint: Annotated[
        bool, typer.Option("--no-lint", help="Start even what surely fails by what the nodes tell; only say so.")
    ] = False,
    yes: YesOption = False,
    ask_become_pass: AskBecomePassOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a program on all nodes, by mpirun.

    Starts one rank per slot in the containers of the nodes.

    Slots are GPUs; on a node without GPUs the variable cluster_slots, or its CPUs. Output comes live, every
    line with its rank; the exit code is the program's own, or 125 when it could not be started. Ctrl-C, or the
    end of this command by any other way, ends the job on all nodes.

    A node that cannot take ranks stops the job before it starts, unless --limit leaves it out or --allow-missing
    goes on without it. A node whose host key is not the known one always stops it.
    So does, in the same way, a node on which GPUDirect RDMA did not come up as it is recorded (check
    peer_memory.boot), until that check passes; --allow-degraded takes it all the same.

    On nodes with GPUs the ranks get NCCL's variables for the network that all of them have (RDMA or TCP), by NCCL's
    version, and each node its own where they differ; --env replaces any of them, and --explain tells why each is so.
    --preset taco is the command line of TACO Train's guide, word for word; its --lightcc compresses gradients, which
    changes what is trained. --preset horovod-lightcc is LightCC without that (--env LIGHT_TOPK_ALLREDUCE=1 adds it).
    --launcher python starts the same ranks with torch's variables (MASTER_ADDR, RANK, ...). With torchrun, or launch
    for torch.distributed.launch, mpirun starts one process on each node, which makes a rank for each of its slots.
    --placement takes nodes, GPUs, cards and CPUs from a file: each rank is bound to its CPUs, and all ranks of a node
    see its GPUs in the order of their local ranks.
    --gputopology chooses them as `provision place --gputopology` does and starts the job there: a rank for each GPU,
    -n of them or those of --workers with --gpus each, all or none. Nodes that cannot take ranks are no choice, and
    named on stderr; between the look at the nodes and the start nothing is reserved.
    Where the image's mpirun is MPICH's or Intel MPI's, the line is written in their words; ranks get the same.
    A command that is a line of Open MPI's mpirun is started as it is, with what it needs to reach the containers.
    What is odd about your variables and flags, by what the nodes tell, is said; what surely fails is not started.
    --offline takes what the inventory states: cluster_gpus, cluster_data_interface, cluster_management_interface,
    cluster_gid_index, cluster_mpirun, cluster_mpi.

    \b
    Examples:
      provision run -- provision-smoke
      provision run --lab demo -n 4 -- hostname
      provision run --sync . --env LR=0.1 --env WANDB_API_KEY -- python3 train.py
      provision run --limit 'gpu[1:4]' --dry-run -- python3 train.py
      provision run --explain -- python3 train.py
      provision run --launcher torchrun -- train.py --epochs 3
      provision run --gputopology -n 4 -- python3 train.py
      provision run --gputopology --gpus 8 --workers 2 --explain -- ./train.py
      provision run -- mpirun -np 16 -x NCCL_DEBUG=INFO python3 train.py
      provision run --preset taco -n 16 --lightcc --dry-run --offline -- ./train.py
    """
    from provision import jobs, workflow
    from provision.workflow.job_requests import LaunchOptions

    with _before_the_start():
        wish = run_options.wish(preset, fabric, lightcc=lightcc, gdr=gdr)
        run_options.refuse_modes(offline=offline, dry_run=dry_run, explain=explain, as_json=as_json)
        environment = run_options.environment(env or ())
        seats = run_options.seats(launcher, placement, own_gpus=own_gpus, gputopology=gputopology)
        asked = run_placing.wanted(ranks, gpus, workers, seats, gputopology=gputopology, offline=offline)
        chosen: run_placing.Chosen | None = None
        cluster = cluster_from(
            inventory, lab, become_password=ask_become_password(ask=ask_become_pass), connects=not offline
        )
        full = workflow.with_defaults(cluster)
        if offline:
            entries, found = workflow.stated_entries(full, limit), workflow.stated_networks(full)
            facts: dict[str, NodeFacts] = {}
        else:
            entries, degraded, facts = run_nodes.entries_for_ranks(
                full, limit, allow_missing=allow_missing, allow_degraded=allow_degraded, choosing=asked is not None
            )
            if asked is not None:
                seats, chosen = run_placing.choose(asked, full, entries, facts, seats)
                degraded = [(name, why) for name, why in degraded if name in chosen[0].nodes]
            found = workflow.found_networks(full, facts)
            take_degraded(cluster, "run --dry-run" if dry_run or explain else "run", degraded)
        options = LaunchOptions(wish, seats, None if chosen else ranks, sync, environment, workdir)
        request = workflow.job_request(full, entries, tuple(command), options, found, facts)
        plan = _offline(request) if offline else _plan(request, dry_run or explain, yes)
        _say_lossy(plan)
        _judge(plan, no_lint=no_lint)
        if explain or dry_run:
            _show(plan, chosen, explain=explain, as_json=as_json)
            return
    if context.obj is not None:
        context.obj.append(plan)
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


def _offline(request: JobRequest) -> Plan:
    from provision import jobs, workflow

    return jobs.prepare_offline(request, workflow.stated_container(request.nodes[request.head].variables))


def _say_lossy(plan: Plan) -> None:
    from provision.profiles import lossy_ones

    for name in lossy_ones(plan.settings):
        say(f"warning: {name}=1 compresses gradients, which changes what is trained; --env {name}=0 leaves it out")


def _judge(plan: Plan, *, no_lint: bool) -> None:
    """Say what is odd about the command line; LaunchError for what surely fails, unless that is allowed."""
    failing = [finding for finding in plan.findings if finding.fails and not no_lint]
    for finding in plan.findings:
        if finding not in failing:
            say(f"warning: {finding}")
            say(f"  hint: {finding.remedy}")
    if failing:
        first, *others = failing
        raise LaunchError(
            f"the job would fail: {first}",
            remedy=f"{first.remedy} Or start it all the same: --no-lint.",
            output="\n".join(f"{finding} ({finding.remedy})" for finding in others),
        )


def _show(plan: Plan, chosen: run_placing.Chosen | None, *, explain: bool, as_json: bool) -> None:
    from provision import jobs
    from provision.report import launch_report

    if not explain:
        show(jobs.dry_run(plan), end="")
    elif as_json:
        print_json(launch_report.as_document(plan.argv, plan.settings) | run_placing.as_document(chosen))
    else:
        show(launch_report.as_text(plan.argv, plan.settings))


def _plan(request: JobRequest, dry_run: bool, yes: bool) -> Plan:
    from provision import jobs

    if request.sync is not None and not dry_run:
        for line in jobs.sync(request, lambda question: confirm(question, yes=yes)):
            say(line)
    return jobs.prepare(request)


def _write(stream: str, line: bytes) -> None:
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.buffer.write(line)
    target.buffer.flush()
