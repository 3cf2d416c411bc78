"""``provision reset``: undo the changes of apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import (
    DisruptiveOption,
    JsonOption,
    NodeOptions,
    VerboseOption,
    YesOption,
    confirm,
    print_json,
    say,
    show,
)
from provision.cli.option_groups import with_option_groups

if TYPE_CHECKING:
    from provision.report.json_documents.changes import Reset


@with_option_groups
def reset(
    where: NodeOptions,
    disruptive: DisruptiveOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    yes: YesOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Undo the changes of apply on the nodes.

    Pre-existing configuration is preserved.

    Files that existed before are restored exactly; later edits are preserved. The
    training container, packages, units and files of apply are removed. Every node first reports what it
    would do. A node on which a job runs is refused, as is a reset that would stop or remove other users'
    containers, or remove Slurm's records of jobs. An interrupted reset is completed by the next one. The
    exit code is 1 when a node was not reset.

    \b
    Examples:
      provision reset --dry-run
      provision reset --limit gpu3
      provision reset --dry-run --verbose
      provision reset --limit gpu3 --disruptive gpu3 --yes --json
    """
    from provision import workflow
    from provision.cli.progress import ApplyProgress
    from provision.model import ResetResult
    from provision.report.reset_report import as_document, as_plan, as_text

    cluster, password = where.cluster(), where.become_password
    nodes = workflow.chosen(cluster, where.limit)
    disturbed = workflow.named_nodes(cluster, disruptive or ())
    with ApplyProgress([node.name for node in nodes], doing="comparing", verbose=verbose) as progress:
        planned = workflow.plan_reset(
            cluster, nodes, disruptive=disturbed, become_password=password, on_event=progress.event
        )
    going = [node for node in planned if node.result is ResetResult.PLANNED]
    if dry_run or not going:
        _show(as_document(planned, dry_run=dry_run) if as_json else as_plan(planned, verbose=verbose))
        raise typer.Exit(0 if all(node.result.ok for node in planned) else 1)
    say(as_plan(planned, verbose=verbose))
    confirm(f"Undo this on {'this node' if len(going) == 1 else f'these {len(going)} nodes'}?", yes=yes)
    with ApplyProgress([node.name for node in going], doing="resetting", verbose=verbose) as progress:
        done = workflow.reset(
            cluster,
            planned,
            disruptive=disturbed,
            become_password=password,
            on_event=progress.event,
            on_warning=lambda warning: say(f"warning: {warning}"),
        )
    _show(as_document(done) if as_json else as_text(done, verbose=verbose))
    raise typer.Exit(0 if all(node.result.ok for node in done) else 1)


def _show(report: Reset | str) -> None:
    if isinstance(report, str):
        show(report)
    else:
        print_json(report)
