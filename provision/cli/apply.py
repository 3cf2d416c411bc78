"""``provision apply``: apply the inventory to the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import (
    DisruptiveOption,
    ForceOption,
    JsonOption,
    NodeOptions,
    RebootOption,
    VerboseOption,
    YesOption,
    checked,
    confirm,
    note,
    print_json,
    say,
    show,
)
from provision.cli.completion import complete_roles
from provision.cli.option_groups import with_option_groups
from provision.errors import UsageError
from provision.report.node_names import in_short

if TYPE_CHECKING:
    from provision.model import ApplyReport, Cluster, Node
    from provision.report.json_documents.changes import Apply
    from provision.workflow import Asked, PlanResult, Request


@dataclass(frozen=True, kw_only=True)
class ApplyOptions(NodeOptions):
    """Options of ``provision apply``."""

    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="ROLE",
            help="Only run this role of the plan, or one step of it (ROLE_STEP). Repeatable.",
            autocompletion=complete_roles,
        ),
    ] = None
    force: ForceOption = None
    disruptive: DisruptiveOption = None
    reboot: RebootOption = False
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", dir_okay=False, help="Run a plan of plan --out, if it is still valid."),
    ] = None
    waves: Annotated[
        str | None,
        typer.Option(
            "--waves",
            metavar="SIZES",
            help="Nodes to change at once. Default: 1,10%,100%; 1,100% for safe steps; 100% on new nodes.",
        ),
    ] = None
    max_failures: Annotated[
        int | None,
        typer.Option(
            "--max-failures",
            min=1,
            metavar="N",
            help="Start no further wave after N failed nodes. Default: 1 in the first wave, then a tenth of the nodes.",
        ),
    ] = None
    keep_going: Annotated[
        bool,
        typer.Option("--keep-going", help="If the preflight fails on some nodes, apply to the others."),
    ] = False
    verbose: VerboseOption = False
    yes: YesOption = False
    as_json: JsonOption = False


@with_option_groups
def apply(options: ApplyOptions) -> None:
    """Apply the inventory to the nodes.

    Installs and configures Docker, RDMA, the training image, containers and SSH.

    Probes every node, shows the pending steps with their reasons, asks, runs the steps, and probes again. The
    final probe decides whether the apply succeeded. Without pending steps nothing is asked or written.
    Before the first change a preflight verifies variables, packages, repositories and the image. If it finds a
    problem, no node is changed (--keep-going: only nodes without a problem are changed).
    A failed node does not stop the others, and the next apply runs only the remaining steps.
    Nodes that need a new kernel are rebooted one first, then in waves: with --reboot, or inside their maintenance
    window. A node whose new kernel is not healthy returns to the previous one.
    The exit code is 6 when nothing failed and a step waits for jobs to end, or for --reboot or the window.

    \b
    Examples:
      provision apply
      provision apply --lab demo --yes
      provision apply -i inventories/prod --limit 'gpu[1:4]'
      provision apply --only docker_engine --json --yes
      provision apply --plan change.json
      provision apply --waves 1,25%,100% --max-failures 2
      provision apply --reboot --limit 'gpu[1:4]'
      provision apply --yes --verbose > apply.log
    """
    from provision import workflow

    if options.plan and (options.only or options.force or options.disruptive or options.reboot):
        raise UsageError(
            "--plan excludes --only, --force, --disruptive and --reboot, which would change the plan",
            remedy="Use them with plan --out.",
        )
    asked = workflow.asked_for(options.only or ())
    cluster = options.cluster()
    nodes = workflow.chosen(cluster, options.limit)
    probe_result, request = _planned(options, asked, cluster, nodes)
    stopped = not asked.steps and bool(workflow.blocked(probe_result)) and not options.keep_going
    if not stopped and (asked.steps or workflow.steps_to_confirm(probe_result)):
        agreed = options.yes or options.plan is not None
        agree(probe_result, steps=bool(asked.steps), yes=agreed, verbose=options.verbose)
    from provision.cli.progress import ApplyProgress

    with ApplyProgress([node.name for node in nodes], verbose=options.verbose) as progress:
        report = workflow.apply(
            cluster,
            nodes,
            request=request,
            steps=asked.steps,
            waves=workflow.WaveOptions(
                options.waves, options.max_failures, options.keep_going, options.plan is not None
            ),
            result=probe_result,
            become_password=options.become_password,
            on_event=progress.event,
        )
    _report(report, probe_result, options, stopped=stopped)
    raise typer.Exit(report.exit_code)


def _planned(
    options: ApplyOptions, asked: Asked, cluster: Cluster, nodes: Sequence[Node]
) -> tuple[PlanResult, Request]:
    """Return the plan of this run, which is the saved one if it is still valid, and its request."""
    from provision import workflow

    forced = workflow.chosen_roles(options.force or (), "--force")
    disruptive = workflow.named_nodes(cluster, options.disruptive or ())
    request = workflow.Request(asked.roles, forced, disruptive, options.reboot)
    if options.waves:
        from provision.planning.waves import wave_sizes

        wave_sizes(options.waves, len(nodes))  # an invalid size is refused before any node is probed
    saved = None
    if options.plan:
        saved, request = workflow.read_saved(options.plan)
    names = in_short([node.name for node in nodes])
    note(f"apply {cluster.inventory} on {len(nodes)} node{'s' * (len(nodes) != 1)}: {names}")
    workflow.await_reboots(cluster, nodes, _note_reboots)
    probe_result = workflow.probe_and_plan(cluster, nodes, request, meanwhile=_get_ready)
    if saved and (differences := workflow.saved_differences(saved, probe_result)):
        raise UsageError(
            f"{options.plan} is outdated: {differences[0]}",
            output="\n".join(differences[1:]),
            remedy="Nothing was changed. Create a new plan: provision plan",
        )
    if asked.steps:
        note(f"run {', '.join(asked.steps)} without a plan")
        return probe_result, request
    return checked(probe_result), request


def _note_reboots(names: Sequence[str]) -> None:
    """Report which nodes an interrupted apply has rebooted."""
    note(f"wait for {in_short(list(names))}, which an interrupted apply rebooted")


def _report(report: ApplyReport, probe_result: PlanResult, options: ApplyOptions, *, stopped: bool) -> None:
    from provision.report.apply_report import as_document, as_text
    from provision.report.plan_report import problems_document, problems_text

    if options.as_json:
        document: Apply = {**as_document(report), "problems": problems_document(probe_result.plan)}
        print_json(document)
    elif stopped:
        show(problems_text(probe_result.plan))
        rest = len(probe_result.plan.nodes) > sum(bool(node.problems) for node in probe_result.plan.nodes)
        show("\nNothing was changed." + " To apply to the other nodes: --keep-going, or --limit." * rest)
    else:
        show(as_text(report, verbose=options.verbose))


def _get_ready() -> None:
    """Import the modules for the next phase while the nodes are probed."""
    from provision import workflow
    from provision.cli import progress  # noqa: F401
    from provision.report import apply_report  # noqa: F401

    _ = workflow.apply, workflow.WaveOptions


def agree(probe_result: PlanResult, *, steps: bool, yes: bool, verbose: bool = False) -> None:
    """Show the plan and ask; return if the answer is yes."""
    from provision.report.plan_report import as_text
    from provision.workflow import drained_first

    if not steps:
        announce = note if yes else say  # a question is only asked after the plan was shown
        announce(as_text(probe_result.plan, verbose=verbose))
        if drained := drained_first(probe_result):
            announce(drained)
    count = len(probe_result.plan.nodes)
    confirm(f"Change {'this node' if count == 1 else 'these nodes'}?", yes=yes)
