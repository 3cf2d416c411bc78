"""``provision hostfile``: host files of launchers with the available nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import (
    AllowDegradedOption,
    JsonOption,
    NodeOptions,
    print_json,
    say_reasons,
    show,
    take_degraded,
)
from provision.cli.completion import complete_words
from provision.cli.option_groups import with_option_groups
from provision.errors import NodeError, UsageError
from provision.launchers import DEFAULT_MPI, LAUNCHERS, host_files

if TYPE_CHECKING:
    from provision.model import NodePlacement
    from provision.report.json_documents.launches import HostFile as HostFileDocument
    from provision.workflow import HostFile

_BINDING = ", ".join(name for name in host_files() if LAUNCHERS[name].binds_ranks)
_WITH_PORT = ", ".join(name for name in host_files() if LAUNCHERS[name].has_port)
_LAST_PORT = 65535


@with_option_groups
def hostfile(
    where: NodeOptions,
    launcher: Annotated[
        str,
        typer.Option(
            "--launcher",
            metavar="NAME",
            help=f"Launcher: {', '.join(host_files())}.",
            autocompletion=complete_words(*host_files()),
        ),
    ] = DEFAULT_MPI,
    ranks: Annotated[
        int | None,
        typer.Option("-n", "--ranks", metavar="NP", help="Slots for exactly this number of ranks. [all slots]"),
    ] = None,
    master_port: Annotated[
        int | None,
        typer.Option("--master-port", metavar="PORT", help=f"Port for {_WITH_PORT}. [a free port of the first node]"),
    ] = None,
    rankfile: Annotated[
        bool,
        typer.Option("--rankfile", help=f"For {_BINDING}: print a rank file, which binds each rank to CPUs."),
    ] = False,
    placement: Annotated[
        Path | None,
        typer.Option("--placement", metavar="FILE", help="With --rankfile: use the CPUs of FILE (provision place)."),
    ] = None,
    allow_degraded: AllowDegradedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print a host file with the available slots.

    A slot is a GPU; on a node without GPUs, cluster_slots of the inventory or one per CPU. Nodes that
    cannot run ranks are excluded, with the reason on stderr; the exit code is 1 when one of them is unreachable.
    With -n the file has exactly this number of slots, from the first nodes; fewer slots are an error.
    A node whose GPUDirect RDMA did not start as recorded at boot (check peer_memory.boot) runs no ranks until
    that check passes; --allow-degraded includes it.

    torchrun reads no file: the output has a line NAME NODE_RANK NPROC MASTER_ADDR MASTER_PORT for each node. For slurm
    it is the file for SLURM_HOSTFILE, with a line per task. A rank file (--rankfile) binds ranks to CPUs: those of
    --placement, or equal shares of the node's. It uses CPU numbers of the operating system, so start Open MPI 4 with
    --mca rmaps_rank_file_physical 1.

    \b
    Examples:
      provision hostfile --launcher openmpi > hosts
      provision hostfile --launcher torchrun -n 16
      provision hostfile --rankfile --placement placement.json > ranks
      provision hostfile --allow-degraded > hosts
    """
    from provision import workflow

    placed = _placement(launcher, placement, rankfile=rankfile)
    _refuse_port(launcher, master_port)
    cluster = where.cluster()
    made = workflow.hostfile(
        cluster, launcher, where.limit, allow_degraded=allow_degraded, ranks=ranks, master_port=master_port
    )
    take_degraded(cluster, "hostfile", made.degraded)
    _print(made, launcher, placed, rankfile=rankfile, as_json=as_json)


def _print(made: HostFile, launcher: str, placed: list[NodePlacement] | None, *, rankfile: bool, as_json: bool) -> None:
    say_reasons("excluded: ", made.left_out)
    if not made.text:
        raise NodeError("no node can run ranks", remedy="Run: provision verify")
    text = _rank_file(made, placed) if rankfile else made.text
    if as_json:
        print_json(_document(made, launcher, text))
    else:
        show(text, end="")
    raise typer.Exit(1 if made.lost else 0)


def _placement(launcher: str, file: Path | None, *, rankfile: bool) -> list[NodePlacement] | None:
    """Return the placement of the file, None without one; UsageError for options that exclude each other."""
    from provision.launchers.placement_file import read_placement

    if launcher not in host_files():
        raise UsageError(f"--launcher {launcher}: unknown launcher", remedy=f"Choose {', '.join(host_files())}.")
    if rankfile and not LAUNCHERS[launcher].binds_ranks:
        raise UsageError(f"{launcher} reads no rank file", remedy=f"Choose {_BINDING}, or omit --rankfile.")
    if file is None:
        return None
    if not rankfile:
        raise UsageError("--placement is for rank files", remedy="Add --rankfile.")
    try:
        return read_placement(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--placement {file}: it cannot be read: {error}") from error


def _refuse_port(launcher: str, port: int | None) -> None:
    if port is None:
        return
    if not LAUNCHERS[launcher].has_port:
        raise UsageError(f"--master-port is for {_WITH_PORT}", remedy="Omit it.")
    if not 1 <= port <= _LAST_PORT:
        raise UsageError(f"--master-port {port}: not a port number", remedy="Choose a number from 1 to 65535.")


def _rank_file(made: HostFile, placed: list[NodePlacement] | None) -> str:
    """Return a rank file of the available nodes; UsageError if the placement contains another node."""
    from provision.launchers.rankfile import even_placement, render

    if placed is None:
        return render(even_placement(made.entries))
    slots = {entry.name: entry.slots for entry in made.entries}
    for node in placed:
        if len(node.ranks) > slots.get(node.node, 0):
            has = f"has {slots[node.node]} slots" if node.node in slots else "cannot run ranks"
            raise UsageError(
                f"the placement puts {len(node.ranks)} ranks on {node.node}, which {has}",
                remedy="Create a new placement: provision place",
            )
    return render(placed)


def _document(made: HostFile, launcher: str, text: str) -> HostFileDocument:
    """Return the document of ``--json``. Keys are an interface: never rename or remove one."""
    return {
        "ok": not made.lost,
        "launcher": launcher,
        "hostfile": text,
        "left_out": [{"node": name, "reason": reason} for name, reason in made.left_out],
        "degraded": [{"node": name, "reason": reason} for name, reason in made.degraded],
        "slots": {entry.name: entry.slots for entry in made.entries},
    }
