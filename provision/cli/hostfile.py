"""``provision hostfile``: the nodes that can take ranks, in a launcher's dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from provision.cli.common import (
    AllowDegradedOption,
    AskBecomePassOption,
    InventoryOption,
    JsonOption,
    LabOption,
    LimitOption,
    ask_become_password,
    cluster_from,
    print_json,
    say,
    take_degraded,
)
from provision.errors import NodeError, UsageError
from provision.hostfiles import LAUNCHERS

if TYPE_CHECKING:
    from provision.workflow import HostFile

__all__ = ["hostfile"]


def hostfile(
    inventory: InventoryOption = None,
    lab: LabOption = None,
    limit: LimitOption = None,
    launcher: Annotated[
        str, typer.Option("--launcher", metavar="NAME", help=f"Whose dialect: {', '.join(LAUNCHERS)}.")
    ] = "openmpi",
    allow_degraded: AllowDegradedOption = False,
    ask_become_pass: AskBecomePassOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the host file of a launcher, with slots as they are on the nodes now.

    A slot is a GPU; on a node without GPUs cluster_slots of the inventory, else a CPU. Nodes that
    could not take ranks are left out, and stderr says why; the exit code is 1 when one of them was not reached.
    A node on which GPUDirect RDMA did not come up as it is recorded (check peer_memory.boot) takes no ranks until
    that check passes, unless --allow-degraded takes it.

    \b
    Examples:
      provision hostfile --launcher openmpi > hosts
      provision hostfile --lab demo --limit demo-1 --json
      provision hostfile --allow-degraded > hosts
    """
    from provision import workflow

    if launcher not in LAUNCHERS:
        raise UsageError(f"no launcher is called {launcher!r}", remedy=f"Known are: {', '.join(LAUNCHERS)}.")
    cluster = cluster_from(inventory, lab, become_password=ask_become_password(ask=ask_become_pass))
    made = workflow.hostfile(cluster, launcher, limit, allow_degraded=allow_degraded)
    for name, reason in made.left_out:
        say(f"left out: {name}: {reason}")
    take_degraded(cluster, "hostfile", made.degraded)
    if not made.text:
        raise NodeError("no node can take ranks, so there is no host file", remedy="Run: provision verify")
    if as_json:
        print_json(_document(made, launcher))
    else:
        typer.echo(made.text, nl=False)
    raise typer.Exit(1 if made.lost else 0)


def _document(made: HostFile, launcher: str) -> dict[str, Any]:
    """Return what ``--json`` prints; keys are an interface and only ever added."""
    return {
        "ok": not made.lost,
        "launcher": launcher,
        "hostfile": made.text,
        "left_out": [{"node": name, "reason": reason} for name, reason in made.left_out],
        "degraded": [{"node": name, "reason": reason} for name, reason in made.degraded],
    }
