"""``provision verify``: prove that the nodes are what the inventory wants."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import (
    AskBecomePassOption,
    InventoryOption,
    JsonOption,
    LabOption,
    LimitOption,
    ask_become_password,
    cluster_from,
    note,
    print_json,
    show,
)
from provision.errors import UsageError

if TYPE_CHECKING:
    from provision.model import Cluster
    from provision.workflow import Survey

__all__ = ["Level", "verify"]


class Level(StrEnum):
    """How much is tried."""

    QUICK = "quick"
    FULL = "full"


def verify(
    inventory: InventoryOption = None,
    lab: LabOption = None,
    limit: LimitOption = None,
    level: Annotated[
        Level,
        typer.Option("--level", help="quick, or full: measure the bandwidth between all idle nodes too."),
    ] = Level.QUICK,
    collective: Annotated[
        bool, typer.Option("--collective", help="With --level full: run an all-reduce over all idle nodes too.")
    ] = False,
    profile: Annotated[
        str, typer.Option("--profile", metavar="NAME", help="Hold the nodes against a guide too: topology or taco.")
    ] = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every check of each node, not only what is wrong.")
    ] = False,
    ask_become_pass: AskBecomePassOption = False,
    as_json: JsonOption = False,
) -> None:
    """Verify the nodes and the cluster.

    Probes each node and evaluates the checks; changes nothing.

    Every warning and failure comes with its reason and what to do. What rests on a stand-in of the
    lab is marked SIMULATED. The exit code is 1 when any check fails.

    Level full also runs ib_write_bw between the training containers of all idle nodes, in GPU memory where there is
    a way to it, and compares with the line rate. It puts load on the network; how long it takes is said first. A
    measurement without two idle nodes that can take part fails.

    --collective also runs an all-reduce over all idle nodes, as a job of `provision run`: nccl-tests (or PyTorch) on
    GPUs, MPI on nodes without. Its bus bandwidth must reach cluster_collective_fraction of what `provision place`
    predicts. The GPUs are leased while it runs; a busy node is left out. Result: cluster.collective.

    --profile holds each node against what a guide asks for, component by component: topology is topology-aware
    scheduling (driver, NCCL, docker, system, card), taco is training on bare metal with RDMA (disk, RDMA, driver,
    docker, container toolkit). Newer than asked for passes; too old or missing fails.

    \b
    Examples:
      provision verify
      provision verify --lab demo --verbose
      provision verify --level full
      provision verify --level full --collective
      provision verify --profile topology
      provision verify -i inventories/prod --limit 'gpu[1-4]' --json
    """
    _check_options(level, profile, collective=collective)
    cluster = cluster_from(inventory, lab, become_password=ask_become_password(ask=ask_become_pass))
    survey = _survey(cluster, limit, level, profile, collective=collective)
    _show(survey, profile, verbose=verbose, as_json=as_json)
    raise typer.Exit(0 if survey.verification.ok else 1)


def _survey(cluster: Cluster, limit: str | None, level: Level, profile: str, *, collective: bool) -> Survey:
    from provision import workflow
    from provision.cli.progress import Steps

    nodes = workflow.chosen(cluster, limit)
    note(f"verify {cluster.inventory} ({level.value}) on {len(nodes)} node{'s' * (len(nodes) != 1)}")
    full = Steps().step if level is Level.FULL else None
    return workflow.verify(cluster, limit, full=full, profile=profile, collective=collective)


def _show(survey: Survey, profile: str, *, verbose: bool, as_json: bool) -> None:
    from provision.report.verify_report import as_document, as_text, profile_document, profile_text

    if as_json:
        more = {"profile": profile_document(profile, survey.held)} if profile else {}
        print_json(as_document(survey.verification) | more)
    else:
        if survey.held:
            show(profile_text(profile, survey.held) + "\n")
        show(as_text(survey.verification, verbose=verbose, simulated=survey.simulated()))


def _check_options(level: Level, profile: str, *, collective: bool) -> None:
    from provision.checks.minimums import MINIMUMS

    if profile and profile not in MINIMUMS:
        raise UsageError(f"--profile {profile}: unknown profile", remedy=f"Choose {', '.join(MINIMUMS)}.")
    if collective and level is not Level.FULL:
        raise UsageError("--collective is for --level full", remedy="Run: provision verify --level full --collective")
