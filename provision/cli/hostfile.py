"""``provision hostfile``: the nodes that can take ranks, in a launcher's dialect."""

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
)
from provision.errors import NodeError, UsageError
from provision.hostfiles import LAUNCHERS

__all__ = ["hostfile"]


def hostfile(
    inventory: InventoryOption = None,
    lab: LabOption = None,
    limit: LimitOption = None,
    launcher: Annotated[
        str, typer.Option("--launcher", metavar="NAME", help=f"Whose dialect: {', '.join(LAUNCHERS)}.")
    ] = "openmpi",
    ask_become_pass: AskBecomePassOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the host file of a launcher, with slots as they are on the nodes now.

    A slot is a GPU; on a node without GPUs cluster_slots of the inventory, else a CPU. Nodes that
    could not take ranks are left out, and stderr says why; the exit code is 1 when one of them was not reached.

    \b
    Examples:
      provision hostfile --launcher openmpi > hosts
      provision hostfile --lab demo --limit demo-1 --json
    """
    from provision import workflow

    if launcher not in LAUNCHERS:
        raise UsageError(f"no launcher is called {launcher!r}", remedy=f"Known are: {', '.join(LAUNCHERS)}.")
    cluster = cluster_from(inventory, lab, become_password=ask_become_password(ask=ask_become_pass))
    text, left_out, lost = workflow.hostfile(cluster, launcher, limit)
    for name, reason in left_out:
        say(f"left out: {name}: {reason}")
    if not text:
        raise NodeError("no node can take ranks, so there is no host file", remedy="Run: provision verify")
    if as_json:
        omitted = [{"node": name, "reason": reason} for name, reason in left_out]
        print_json({"ok": not lost, "launcher": launcher, "hostfile": text, "left_out": omitted})
    else:
        typer.echo(text, nl=False)
    raise typer.Exit(1 if lost else 0)
