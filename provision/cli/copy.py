"""``provision copy``: copy one file to many nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from provision.cli.common import JsonOption, NodeOptions, note, print_json, show
from provision.cli.levels import patience
from provision.cli.option_groups import with_option_groups
from provision.errors import UsageError


@with_option_groups
def copy(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A local file.")],
    target: Annotated[str, typer.Argument(metavar="PATH", help="An absolute path; a folder if it ends in /.")],
    where: NodeOptions,
    as_json: JsonOption = False,
) -> None:
    """Copy a file to all nodes.

    The file keeps its permissions and is owned by the user of the command, root where the inventory sets
    ansible_become. An existing file is replaced atomically. The exit code is 0 when all nodes have it, otherwise 1.

    \b
    Examples:
      provision copy topology.xml /etc/nccl/
      provision copy --limit gpu3 nccl.conf /etc/nccl.conf
    """
    from provision import workflow
    from provision.model import CommandResult
    from provision.report.command_report import command_document, command_summary, command_text, failed_nodes
    from provision.workflow.remote_commands import copy_file

    if not source.is_file():
        raise UsageError(f"{source}: not a file", remedy="Specify a regular file. Pack a folder with tar first.")
    if not target.startswith("/") or "\0" in target or "\n" in target:
        raise UsageError(f"{target}: not an absolute path", remedy="Specify a path that starts with /.")
    path = target + source.name if target.endswith("/") else target
    cluster = where.cluster()
    nodes = workflow.chosen(cluster, where.limit)
    with patience(f"copying {source.name} to {len(nodes)} nodes"):
        copied = copy_file(nodes, source, path)
    results = {
        name: CommandResult(f"copied to {path}", "", 0) if error is None else error for name, error in copied.items()
    }
    if as_json:
        print_json(command_document(results))
    else:
        show(command_text(results))
        if failed_nodes(results):
            note(f"{source.name}: {command_summary(results, 'copied')}")
    raise typer.Exit(1 if failed_nodes(results) else 0)
