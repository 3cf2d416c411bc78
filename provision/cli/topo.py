"""``provision topo``: links between the GPUs and network cards of a node."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import ClusterOptions, JsonOption, print_json, say, show
from provision.cli.completion import complete_nodes
from provision.cli.option_groups import with_option_groups
from provision.errors import ProvisionError, UsageError

if TYPE_CHECKING:
    from provision.topology.machine import MachineTopology

_MOST_CHARACTERS = 1 << 20
"""Maximum size of a file; a matrix of 32 devices has 8000 characters."""
_WANTED = "Specify a file with the output of `nvidia-smi topo -m`."


@with_option_groups
def topo(
    node: Annotated[
        str | None,
        typer.Argument(metavar="NODE", help="Node of the inventory.", autocompletion=complete_nodes),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="FILE", help="Read this output of `nvidia-smi topo -m`; - is standard input."),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="LIST", help="Mark these GPUs, e.g. 0,1,2,3 or 0-3.")
    ] = None,
    svg: Annotated[str | None, typer.Option("--svg", metavar="FILE", help="Also write a drawing to this file.")] = None,
    *,
    where: ClusterOptions,
    as_json: JsonOption = False,
) -> None:
    """Show how GPUs and network cards are linked.

    The links are shown as a matrix and as a tree.

    `nvidia-smi topo -m` runs on the node over SSH, without changes; outputs of all versions can be read from files.
    Warnings report a GPU without NVLink, an asymmetric matrix and corrections;
    text that is truncated or another table of nvidia-smi is refused.

    \b
    Examples:
      provision topo gpu1
      provision topo gpu1 --gpus 0-3 --svg gpu1.svg
      provision topo --lab demo demo-1 --json
      nvidia-smi topo -m | provision topo --file -
    """
    if (node is None) == (file is None):
        raise UsageError("provision topo: specify either NODE or --file", remedy="For example: provision topo gpu1")
    if file is not None:
        if where.is_given:
            raise UsageError("--file probes no node and excludes --inventory and --lab", remedy="Omit them.")
        machine = _from_file(file)
    else:
        from provision import workflow

        machine = workflow.topology(where.cluster(), str(node))
    _tell(_marked(machine, gpus), svg, as_json=as_json)


def _tell(machine: MachineTopology, svg: str | None, *, as_json: bool) -> None:
    from provision.report.topo_report import as_document, as_text

    if svg is not None:
        from provision.report.topo_svg import as_svg

        _write(Path(svg), as_svg(machine))
    if as_json:
        print_json(as_document(machine))
    else:
        show(as_text(machine))


def _from_file(file: str) -> MachineTopology:
    from provision.topology.machine import MachineTopology
    from provision.topology.matrix import parse

    try:
        return MachineTopology(parse(_read(file)))
    except UsageError as refused:
        raise UsageError(f"{file}: {refused.message}", remedy=refused.remedy) from None


def _marked(machine: MachineTopology, gpus: str | None) -> MachineTopology:
    from provision.topology.machine import chosen_gpus

    return machine if gpus is None else replace(machine, chosen=chosen_gpus(gpus, machine.topology))


def _read(file: str) -> str:
    """Return a file's text, limited to the maximum size of a matrix."""
    if file == "-":
        if sys.stdin.isatty():
            say("reading the matrix from this terminal; Ctrl-D ends it")
        return sys.stdin.buffer.read(_MOST_CHARACTERS).decode(errors="replace")
    try:
        with Path(file).open("rb") as stream:
            return stream.read(_MOST_CHARACTERS).decode(errors="replace")
    except FileNotFoundError:
        raise UsageError("file not found", remedy=_WANTED) from None
    except IsADirectoryError:
        raise UsageError("it is a folder", remedy=_WANTED) from None
    except OSError as error:
        raise ProvisionError(
            f"{file} cannot be read: {error.strerror}", remedy="Check the permissions: ls -l"
        ) from None


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProvisionError(
            f"the drawing cannot be written to {file}: {error.strerror}", remedy="Specify another file for --svg."
        ) from None
    say(f"drawn: {file}")
