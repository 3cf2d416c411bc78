"""``provision plan``: pending changes of the nodes and their reasons."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    checked,
    note,
    print_json,
    show,
)
from provision.cli.completion import complete_roles
from provision.cli.option_groups import with_option_groups
from provision.errors import UsageError

if TYPE_CHECKING:
    from provision.engine import Event
    from provision.model import Cluster, RoleDiff, Secret
    from provision.workflow import PlanResult

_DRIFT = 3


@dataclass(frozen=True, kw_only=True)
class PlanOptions(NodeOptions):
    """Options of ``provision plan``."""

    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="ROLE", help="Only plan this role. Repeatable.", autocompletion=complete_roles),
    ] = None
    force: ForceOption = None
    disruptive: DisruptiveOption = None
    reboot: RebootOption = False
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", dir_okay=False, help="Save the plan for apply --plan FILE."),
    ] = None
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit 3 when there are pending changes (1 when a node is unreachable).")
    ] = False
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Write no file on the nodes, not even a temporary one."),
    ] = False
    diff: Annotated[
        bool,
        typer.Option(
            "--diff",
            help="Also show pending changes in files, without secrets. Ansible's check mode compares the files: that "
            "takes seconds, and minutes for bare nodes.",
        ),
    ] = False
    verbose: VerboseOption = False
    as_json: JsonOption = False


@with_option_groups
def plan(options: PlanOptions) -> None:
    """Show pending changes and their reasons.

    Nothing is changed.

    Each node is probed in one SSH session, all nodes in parallel. A step is safe, needs-idle (it can interrupt a
    running job and waits for its end) or needs-reboot (it also waits for --reboot or the maintenance window). With
    --diff Ansible compares the files of these steps in check mode. For nodes with steps, plan also shows packages and
    files, and runs the preflight: missing variables or packages, unreachable repositories and registries. Then the
    exit code is 1.

    \b
    Examples:
      provision plan
      provision plan --lab demo --limit 'gpu[1:4]'
      provision plan --out change.json && provision apply --plan change.json
      provision plan --exit-code --json
      provision plan --diff --limit gpu1
    """
    from provision import workflow

    if options.diff and options.read_only:
        raise UsageError(
            "--diff and --read-only exclude each other: to compare files, Ansible writes temporary files on the nodes",
            remedy="Omit one of them. With --diff alone nothing else is written there.",
        )
    asked = workflow.asked_for(options.only or ())
    workflow.refuse_steps(asked)
    cluster, password = options.cluster(), options.become_password
    nodes = workflow.chosen(cluster, options.limit)
    forced = workflow.chosen_roles(options.force or (), "--force")
    disruptive = workflow.named_nodes(cluster, options.disruptive or ())
    request = workflow.Request(asked.roles, forced, disruptive, options.reboot)
    note(f"plan {cluster.inventory} on {len(nodes)} node{'s' * (len(nodes) != 1)}")
    probe_result = workflow.probe_and_plan(cluster, nodes, request, read_only=options.read_only, meanwhile=_get_ready)
    probe_result = checked(probe_result, read_only=options.read_only)
    diffs = _differences(cluster, probe_result, password) if options.diff and not probe_result.plan.problems else None
    from provision.report.plan_report import as_document, as_text

    if options.as_json:
        print_json(as_document(probe_result.plan, diffs))
    else:
        show(as_text(probe_result.plan, diffs, verbose=options.verbose))
    if options.out:
        workflow.save(probe_result, options.out, request)
        note(f"saved to {options.out}; run it with: provision apply --plan {options.out}")
    if probe_result.plan.problems or any(node.error for node in probe_result.plan.nodes):
        raise typer.Exit(1)
    raise typer.Exit(_DRIFT if options.exit_code and not probe_result.plan.converged else 0)


def _get_ready() -> None:
    """Import the modules for the next phase while the nodes are probed."""
    from provision.report import plan_report  # noqa: F401


def _differences(cluster: Cluster, probe_result: PlanResult, password: Secret | None) -> tuple[RoleDiff, ...]:
    """Compare the files, with progress on stderr."""
    from provision import workflow
    from provision.cli.progress import ApplyProgress

    names = [node.name for node in probe_result.plan.nodes if node.steps]
    if not names:
        return ()
    note(f"compare the files of the plan's steps on {len(names)} node{'s' * (len(names) != 1)}; nothing is changed")
    with ApplyProgress(names, doing="comparing") as progress:

        def show(event: Event) -> None:
            # check mode changes nothing, although Ansible reports changes
            progress.event(replace(event, status="ok") if event.status == "changed" else event)

        return workflow.content_differences(cluster, probe_result, become_password=password, on_event=show)
