"""``provision verify``: verify that the nodes are in the desired state."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import JsonOption, NodeOptions, note, print_json, show
from provision.cli.option_groups import with_option_groups
from provision.errors import UsageError

if TYPE_CHECKING:
    from provision.model import Cluster
    from provision.workflow import Survey


class Level(StrEnum):
    """Level of verification."""

    QUICK = "quick"
    FULL = "full"


@with_option_groups
def verify(
    where: NodeOptions,
    level: Annotated[
        Level,
        typer.Option("--level", help="quick, or full: also measure the bandwidth between all idle nodes."),
    ] = Level.QUICK,
    collective: Annotated[
        bool, typer.Option("--collective", help="With --level full: also run an all-reduce over all idle nodes.")
    ] = False,
    profile: Annotated[
        str,
        typer.Option("--profile", metavar="NAME", help="Also verify requirements: topology, taco or kubernetes."),
    ] = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every check of each node, including passed ones.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Verify the nodes and the cluster.

    Probes each node and evaluates the checks; changes nothing.

    Every warning and failure has a reason and a remedy. Results of simulated parts of the lab are labelled
    SIMULATED. The exit code is 1 when a check fails.

    Level full also runs ib_write_bw between the training containers of all idle nodes, in GPU memory where
    GPUDirect RDMA is available, and compares with the line rate. It loads the network; the duration is printed first.
    A measurement without two available idle nodes fails.

    --collective also runs an all-reduce over all idle nodes, as a job of `provision run`: nccl-tests (or PyTorch) on
    GPUs, MPI on nodes without. Its bus bandwidth must reach cluster_collective_fraction of the prediction of
    `provision place`. The GPUs are leased while it runs; busy nodes are excluded. Result: cluster.collective.

    --profile verifies the requirements of a guide on each node, component by component: topology is topology-aware
    scheduling (driver, NCCL, Docker, system, GPU), taco is training on bare metal with RDMA (disk, RDMA, driver,
    Docker, container toolkit). Newer versions pass; older or missing ones fail. kubernetes is what a kubelet and the
    operators for GPUs and RDMA need (containerd, cgroup driver, NVIDIA's runtime, swap, modules, sysctls, ports).

    \b
    Examples:
      provision verify
      provision verify --lab demo --verbose
      provision verify --level full
      provision verify --level full --collective
      provision verify --profile topology
      provision verify --profile kubernetes
      provision verify -i inventories/prod --limit 'gpu[1-4]' --json
    """
    _check_options(level, profile, collective=collective)
    cluster = where.cluster()
    survey = _survey(cluster, where.limit, level, profile, collective=collective)
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
        document = as_document(survey.verification)
        if profile:
            document["profile"] = profile_document(profile, survey.held)
        print_json(document)
    else:
        if survey.held:
            show(profile_text(profile, survey.held) + "\n")
        show(as_text(survey.verification, verbose=verbose, simulated=survey.simulated()))


def _check_options(level: Level, profile: str, *, collective: bool) -> None:
    from provision.checks.minimums import MINIMUMS

    if profile and profile not in MINIMUMS:
        raise UsageError(f"--profile {profile}: unknown profile", remedy=f"Choose {', '.join(MINIMUMS)}.")
    if collective and level is not Level.FULL:
        raise UsageError("--collective requires --level full", remedy="Run: provision verify --level full --collective")
