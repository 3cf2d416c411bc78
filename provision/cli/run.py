"""``provision run``: start an MPI job in the nodes' containers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from provision.cli import log_file, run_nodes, run_options, run_placing
from provision.cli.common import (
    AllowDegradedOption,
    JsonOption,
    NodeOptions,
    YesOption,
    confirm,
    print_json,
    say,
    show,
    take_degraded,
)
from provision.cli.completion import complete_words
from provision.cli.option_groups import with_option_groups
from provision.errors import Interrupted, LaunchError, ProvisionError
from provision.launchers import MPIRUN, launcher_names

if TYPE_CHECKING:
    from provision.facts import NodeFacts
    from provision.jobs import JobRequest, Plan
    from provision.jobs.engines.base import JobEngine
    from provision.model import Cluster


@dataclass(frozen=True, kw_only=True)
class RankNodeOptions(NodeOptions):
    """The nodes of the job."""

    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Exclude nodes that cannot run ranks; they are reported on stderr.")
    ] = False
    allow_degraded: AllowDegradedOption = False


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The ranks and their environment."""

    ranks: Annotated[
        int | None,
        typer.Option("-n", "--ranks", metavar="NP", help="Number of ranks. [all slots]", parser=run_options.ranks),
    ] = None
    sync: Annotated[
        Path | None, typer.Option("--sync", metavar="DIR", help="First copy DIR to the same path in every container.")
    ] = None
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env", "-e", "-x", metavar="K[=V]", help="Environment variable of all ranks; without =V, your value."
        ),
    ] = None
    workdir: Annotated[
        str | None,
        typer.Option("--workdir", "-w", metavar="D", help="Working folder of all ranks in the container."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Variables of NCCL and MPI."""

    preset: Annotated[
        str, typer.Option("--preset", metavar="NAME", help="Command line of a guide: taco or horovod-lightcc.")
    ] = ""
    lightcc: Annotated[
        bool, typer.Option("--lightcc", help="With --preset taco: LightCC as in the guide, compression included.")
    ] = False
    gdr: Annotated[bool, typer.Option("--gdr", help="With --preset taco: GPUDirect RDMA as in the guide.")] = False
    fabric: Annotated[
        str, typer.Option("--fabric", metavar="NAME", help="Use tcp, roce, roce-gdr or ib. [the nodes' fabric]")
    ] = ""


@dataclass(frozen=True, kw_only=True)
class PlacementOptions:
    """The launcher of the ranks, and their GPUs."""

    launcher: Annotated[
        str,
        typer.Option(
            "--launcher",
            metavar="NAME",
            help=f"Program that starts the ranks: {', '.join(launcher_names())}.",
            autocompletion=complete_words(*launcher_names()),
        ),
    ] = MPIRUN
    placement: Annotated[
        Path | None,
        typer.Option(
            "--placement", metavar="FILE", help="Use the GPUs, network cards and CPUs of FILE (provision place)."
        ),
    ] = None
    gputopology: Annotated[
        bool, typer.Option("--gputopology", help="Choose the GPUs as provision place does, all of them or none.")
    ] = False
    gpus: Annotated[
        int | None, typer.Option("--gpus", "-g", min=1, metavar="G", help="With --gputopology: GPUs per worker.")
    ] = None
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, metavar="W", help="With --gputopology: number of workers.")
    ] = None
    own_gpus: Annotated[
        bool,
        typer.Option("--own-gpus", help="With --placement or --gputopology: a rank sees only its own GPUs."),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ModeOptions:
    """Start the job, or only show it."""

    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command and the host file without starting the job.")
    ] = False
    offline: Annotated[
        bool, typer.Option("--offline", help="With --dry-run or --explain: use the inventory, probe no node.")
    ] = False
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the source of each variable and flag; start nothing.")
    ] = False
    no_lint: Annotated[
        bool, typer.Option("--no-lint", help="Start even a job that is certain to fail; only report it.")
    ] = False
    yes: YesOption = False
    as_json: JsonOption = False


@with_option_groups
def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="[--] CMD...", help="The program and its arguments.")],
    nodes: RankNodeOptions,
    job: JobOptions,
    network: NetworkOptions,
    place: PlacementOptions,
    mode: ModeOptions,
) -> None:
    """Run a program on all nodes, by mpirun.

    Starts one rank per slot in the containers of the nodes.

    A slot is a GPU; on a node without GPUs there are cluster_slots of them, or one per CPU. Output is live, each line
    with its rank. The exit code is the program's own, or 125 if it could not be started. The job ends on all nodes when
    this command ends, by Ctrl-C or otherwise.

    A node that cannot run ranks prevents the start, unless --limit or --allow-missing excludes it. A host key other
    than the known one always prevents it. So does a node whose GPUDirect RDMA differs from its record (check
    peer_memory.boot); --allow-degraded uses it.

    On GPU nodes the ranks get NCCL's variables for the network of all of them (RDMA or TCP) and for NCCL's
    version, per node if required; --env replaces any of them, and --explain shows the reason for each.
    --preset taco is the command line of TACO Train's guide, word for word; its --lightcc compresses gradients, which
    changes the training. --preset horovod-lightcc does not (--env LIGHT_TOPK_ALLREDUCE=1 does).
    --launcher python starts the same ranks with torch's variables (MASTER_ADDR, RANK, ...). With torchrun, or launch
    for torch.distributed.launch, mpirun starts one process per node, which starts a rank per slot.
    --placement reads nodes, GPUs, network cards and CPUs from a file: each rank is bound to its CPUs, and all ranks of
    a node see its GPUs in the order of their local ranks.
    --gputopology chooses GPUs as `provision place --gputopology` does, one per rank: -n of them, or --workers with
    --gpus each, all or none. Nothing is reserved between the probe and the start. For images with MPICH's or Intel
    MPI's mpirun, the command line is written for it. An mpirun command line of Open MPI is started unchanged, plus the
    options that connect to the containers. Unusual variables and flags cause warnings; a job that is certain to fail is
    not started.
    --offline uses only the inventory: cluster_gpus, cluster_data_interface, cluster_management_interface,
    cluster_gid_index, cluster_mpirun, cluster_mpi.

    \b
    Examples:
      provision run -- provision-smoke
      provision run --lab demo -n 4 -- hostname
      provision run --sync . --env LR=0.1 --env WANDB_API_KEY -- python3 train.py
      provision run --limit 'gpu[1:4]' --dry-run -- python3 train.py
      provision run --explain -- python3 train.py
      provision run --launcher torchrun -- train.py --epochs 3
      provision run --gputopology --gpus 8 --workers 2 --explain -- ./train.py
      provision run -- mpirun -np 16 -x NCCL_DEBUG=INFO python3 train.py
      provision run --preset taco -n 16 --dry-run --offline -- ./train.py
    """
    with _before_the_start():
        prepared = _prepared(command, nodes, job, network, place, mode)
    if prepared is not None:
        _start(context, *prepared)


run.typer_settings = {"context_settings": {"allow_interspersed_args": False}}  # type: ignore[attr-defined]


def _prepared(
    command: Sequence[str],
    nodes: RankNodeOptions,
    job: JobOptions,
    network: NetworkOptions,
    place: PlacementOptions,
    mode: ModeOptions,
) -> tuple[Plan, JobEngine] | None:
    """Return the job and the engine that reserves its GPUs; None if the job is only shown."""
    from provision import workflow
    from provision.workflow.job_requests import LaunchOptions

    profile = run_options.profile_options(network.preset, network.fabric, lightcc=network.lightcc, gdr=network.gdr)
    run_options.refuse_modes(offline=mode.offline, dry_run=mode.dry_run, explain=mode.explain, as_json=mode.as_json)
    environment = run_options.environment(job.env or ())
    rank_options = run_options.rank_options(
        place.launcher, place.placement, own_gpus=place.own_gpus, gputopology=place.gputopology
    )
    asked = run_placing.wanted(
        job.ranks, place.gpus, place.workers, rank_options, gputopology=place.gputopology, offline=mode.offline
    )
    chosen: run_placing.Chosen | None = None
    cluster = nodes.cluster(connects=not mode.offline)
    full = workflow.with_defaults(cluster)
    engine = None if mode.offline or mode.dry_run or mode.explain else _engine(cluster)
    if mode.offline:
        entries, networks = workflow.stated_entries(full, nodes.limit), workflow.stated_networks(full)
        facts: dict[str, NodeFacts] = {}
    else:
        entries, degraded, facts = run_nodes.entries_for_ranks(
            full,
            nodes.limit,
            allow_missing=nodes.allow_missing,
            allow_degraded=nodes.allow_degraded,
            choosing=asked is not None,
        )
        if asked is not None:
            rank_options, chosen = run_placing.choose(asked, full, entries, facts, rank_options)
            degraded = [(name, why) for name, why in degraded if name in chosen[0].nodes]
        networks = workflow.node_networks(full, facts)
        take_degraded(cluster, "run --dry-run" if mode.dry_run or mode.explain else "run", degraded)
    options = LaunchOptions(profile, rank_options, None if chosen else job.ranks, job.sync, environment, job.workdir)
    request = workflow.job_request(full, entries, tuple(command), options, networks, facts)
    plan = _offline(request) if mode.offline else _plan(request, mode.dry_run or mode.explain, mode.yes)
    _say_lossy(plan)
    _judge(plan, no_lint=mode.no_lint)
    if engine is not None:
        return plan, engine
    _show(plan, chosen, explain=mode.explain, as_json=mode.as_json)
    return None


def _engine(cluster: Cluster) -> JobEngine:
    """Return the engine that reserves the GPUs of the ranks."""
    from provision.cli.engine_option import requested_engine
    from provision.jobs.engines.base import Capability, require
    from provision.workflow.jobs import job_engine

    engine = job_engine(cluster, requested_engine())
    require(engine, Capability.GPU_RESERVATION, "provision run")
    return engine


def _start(context: typer.Context, plan: Plan, engine: JobEngine) -> NoReturn:
    """Run the job; a caller inside this process gets its plan in the context."""
    from provision import jobs

    if context.obj is not None:
        context.obj.append(plan)
    raise typer.Exit(jobs.run(plan, _write, engine.reserve_gpus))


@contextmanager
def _before_the_start() -> Iterator[None]:
    """Convert every error to a start error: exit code 125 means that the program never ran."""
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
        say(f"warning: {name}=1 compresses gradients, which changes the training; --env {name}=0 disables it")


def _judge(plan: Plan, *, no_lint: bool) -> None:
    """Report findings about the command line; LaunchError if the job is certain to fail, unless allowed."""
    failing = [finding for finding in plan.findings if finding.fails and not no_lint]
    for finding in plan.findings:
        if finding not in failing:
            say(f"warning: {finding}")
            say(f"  hint: {finding.remedy}")
    if failing:
        first, *others = failing
        raise LaunchError(
            f"the job would fail: {first}",
            remedy=f"{first.remedy} To start it nevertheless: --no-lint.",
            output="\n".join(f"{finding} ({finding.remedy})" for finding in others),
        )


def _show(plan: Plan, chosen: run_placing.Chosen | None, *, explain: bool, as_json: bool) -> None:
    from provision import jobs
    from provision.report import launch_report, place_report

    if not explain:
        show(jobs.dry_run(plan), end="")
    elif as_json:
        document = launch_report.as_document(plan.argv, plan.settings, plan.node_command)
        if chosen is not None:
            document["placement"] = place_report.as_document(*chosen)
        print_json(document)
    else:
        show(launch_report.as_text(plan.argv, plan.settings, plan.node_command))


def _plan(request: JobRequest, dry_run: bool, yes: bool) -> Plan:
    from provision import jobs

    if request.sync is not None and dry_run:
        request = replace(request, is_synced=False)
    elif request.sync is not None:
        for line in jobs.sync(request, lambda question: confirm(question, yes=yes)):
            say(line)
    return jobs.prepare(request)


def _write(stream: str, line: bytes) -> None:
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.buffer.write(line)
    target.buffer.flush()
    log_file.record_raw(stream, line)
