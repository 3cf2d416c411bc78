"""``provision plan``: what an apply would change, on which node, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import (
    AskBecomePassOption,
    DisruptiveOption,
    ForceOption,
    InventoryOption,
    JsonOption,
    LabOption,
    LimitOption,
    VerboseOption,
    ask_become_password,
    checked,
    cluster_from,
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

__all__ = ["plan"]

_DRIFT = 3


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of ``provision plan``."""

    inventory: InventoryOption = None
    lab: LabOption = None
    limit: LimitOption = None
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="ROLE", help="Plan this role alone; may be repeated.", autocompletion=complete_roles
        ),
    ] = None
    force: ForceOption = None
    disruptive: DisruptiveOption = None
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", dir_okay=False, help="Save the plan for apply --plan FILE."),
    ] = None
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit 3 when anything differs (1 when a node is unreachable).")
    ] = False
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Write nothing at all on the nodes, no temporary file either; slower.")
    ] = False
    diff: Annotated[
        bool,
        typer.Option("--diff", help="Show also what would change in files, without secrets; takes some seconds."),
    ] = False
    verbose: VerboseOption = False
    ask_become_pass: AskBecomePassOption = False
    as_json: JsonOption = False


@with_option_groups
def plan(options: PlanOptions) -> None:
    """Show pending changes and their reasons.

    Nothing is changed.

    Each node is probed in one SSH session, all nodes in parallel. A step is safe, or needs-idle (it can hurt a running
    job and waits for it), or needs-reboot. With --diff Ansible compares the files of just these steps in check mode.
    For nodes with steps, plan also shows the packages and files, and finds what would make apply fail: missing
    variables, packages that no repository has, unreachable repositories and registries. Exit code 1 means so.

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
            remedy="Leave one of them out; with --diff alone nothing else is written there.",
        )
    asked = workflow.asked_for(options.only or ())
    workflow.refuse_steps(asked)
    password = ask_become_password(ask=options.ask_become_pass)
    cluster = cluster_from(options.inventory, options.lab, become_password=password)
    nodes = workflow.chosen(cluster, options.limit)
    forced = workflow.chosen_roles(options.force or (), "--force")
    request = workflow.Request(asked.roles, forced, workflow.named_nodes(cluster, options.disruptive or ()))
    note(f"plan {cluster.inventory} on {len(nodes)} node{'s' * (len(nodes) != 1)}")
    found = workflow.probe_and_plan(cluster, nodes, request, read_only=options.read_only, meanwhile=_get_ready)
    found = checked(found, read_only=options.read_only)
    diffs = _differences(cluster, found, password) if options.diff and not found.plan.problems else None
    from provision.report.plan_report import as_document, as_text

    if options.as_json:
        print_json(as_document(found.plan, diffs))
    else:
        show(as_text(found.plan, diffs, verbose=options.verbose))
    if options.out:
        workflow.save(found, options.out, request)
        note(f"saved to {options.out}; run it with: provision apply --plan {options.out}")
    if found.plan.problems or any(node.error for node in found.plan.nodes):
        raise typer.Exit(1)
    raise typer.Exit(_DRIFT if options.exit_code and not found.plan.converged else 0)


def _get_ready() -> None:
    """Import what comes after the look, while the nodes are at work."""
    from provision.report import plan_report  # noqa: F401


def _differences(cluster: Cluster, found: PlanResult, password: Secret | None) -> tuple[RoleDiff, ...]:
    """Compare, and show on stderr how far it is."""
    from provision import workflow
    from provision.cli.progress import ApplyProgress

    names = [node.name for node in found.plan.nodes if node.steps]
    if not names:
        return ()
    note(f"compare the files of the plan's steps on {len(names)} node{'s' * (len(names) != 1)}; nothing is changed")
    with ApplyProgress(names, doing="comparing") as progress:

        def show(event: Event) -> None:
            # In check mode nothing has changed, whatever Ansible calls it.
            progress.event(replace(event, status="ok") if event.status == "changed" else event)

        return workflow.content_differences(cluster, found, become_password=password, on_event=show)
