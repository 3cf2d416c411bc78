"""``provision history``: who changed what, when, and how that ended."""

from __future__ import annotations

from typing import Annotated

import typer

from provision.cli.common import (
    AskBecomePassOption,
    InventoryOption,
    JsonOption,
    LabOption,
    LimitOption,
    ask_become_password,
    cluster_from,
    print_json,
    say,
    show,
)

__all__ = ["history"]


def history(
    inventory: InventoryOption = None,
    lab: LabOption = None,
    limit: LimitOption = None,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Ask the nodes what they remember: the applies of all operators.")
    ] = False,
    number: Annotated[int, typer.Option("-n", "--newest", metavar="N", min=1, help="Only the newest N.")] = 20,
    ask_become_pass: AskBecomePassOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the applies that there were: when, by whom, what for, and how they ended.

    What this machine remembers of the inventory is shown without asking any node; with --nodes each node tells
    what was done to it, from whatever machine. An apply that never came to its end (killed, power cut) has
    ``died``. Both remember the newest 200.

    \b
    Examples:
      provision history
      provision history --limit gpu3 -n 5
      provision history --nodes --json
    """
    from provision import workflow
    from provision.errors import ProvisionError
    from provision.report import history_report as report
    from provision.workflow import history as past

    cluster = cluster_from(inventory, lab, become_password=ask_become_password(ask=ask_become_pass))
    chosen = workflow.chosen(cluster, limit)
    if nodes:
        told = past.read_nodes(chosen, newest=number)
        if as_json:
            print_json(report.nodes_document(told))
        else:
            show(report.nodes_text(told))
        raise typer.Exit(1 if any(isinstance(found, ProvisionError) for found in told.values()) else 0)
    names = {node.name for node in chosen}
    found = [entry for entry in past.read(cluster) if limit is None or names & set(entry.nodes)][-number:]
    if as_json:
        print_json(report.fleet_document(found))
    elif found:
        show(report.fleet_text(found))
    else:
        say(f"no apply of {cluster.inventory} is recorded on this machine; --nodes asks the nodes")
