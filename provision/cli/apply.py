"""``provision apply``: make the nodes what the inventory says."""

from __future__ import annotations

from typing import Annotated

import typer

from provision.cli.common import (
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
)

__all__ = ["apply"]


def apply(
    inventory: InventoryOption = None,
    lab: LabOption = None,
    limit: LimitOption = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="ROLE", help="Run this role (or one step of it, ROLE_STEP) alone; may be repeated."
        ),
    ] = None,
    yes: YesOption = False,
    ask_become_pass: AskBecomePassOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make the nodes what the inventory says: docker, RDMA, image, containers, SSH.

    What is as wanted stays untouched, a failing node does not stop the others, and a second apply
    takes up just what is left.

    \b
    Examples:
      provision apply
      provision apply --lab demo --yes
      provision apply -i inventories/prod --limit 'gpu[1:4]'
      provision apply --only docker_engine --json --yes
    """
    from provision import workflow
    from provision.cli.progress import ApplyProgress
    from provision.report.apply_report import as_document, as_text

    roles = workflow.chosen_roles(only or ())
    password = ask_become_password(ask=ask_become_pass)
    cluster = cluster_from(inventory, lab, become_password=password)
    nodes = workflow.chosen(cluster, limit)
    names = ", ".join(node.name for node in nodes[:8]) + (", ..." if len(nodes) > 8 else "")  # noqa: PLR2004
    say(f"apply {cluster.inventory} on {len(nodes)} node{'s' * (len(nodes) != 1)}: {names}")
    confirm(f"Change {'this node' if len(nodes) == 1 else 'these nodes'}?", yes=yes)
    with ApplyProgress([node.name for node in nodes]) as progress:
        report = workflow.apply(cluster, nodes, roles=roles, become_password=password, on_event=progress.event)
    if as_json:
        print_json(as_document(report))
    else:
        typer.echo(as_text(report))
    raise typer.Exit(0 if report.ok else 1)
