"""``provision exec``: run one command on many nodes."""

from __future__ import annotations

import shlex
import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli import log_file
from provision.cli.common import JsonOption, NodeOptions, note, print_json, printable, show
from provision.cli.levels import patience
from provision.cli.option_groups import with_option_groups
from provision.errors import UsageError

if TYPE_CHECKING:
    from provision.report.command_report import LinePrefixer


@with_option_groups
def exec_(
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The command.")] = None,
    *,
    where: NodeOptions,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print lines as they arrive, each with the name of its node.")
    ] = False,
    fanout: Annotated[
        int, typer.Option("--fanout", metavar="N", min=1, max=512, help="Number of nodes in parallel.")
    ] = 64,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="Time limit of the command on each node.")
    ] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Run a command on all nodes and group equal output.

    The command runs as root where the inventory sets ansible_become. One word is a shell command; several words
    are a program and its arguments. The command has no input. The exit code is 0 when it succeeded on all
    nodes, otherwise 1. The output is limited to 4 MiB per node.

    With the name of a batch job before --, the command runs in the job's container: see provision attach.

    \b
    Examples:
      provision exec -- uptime
      provision exec --limit 'gpu[1-7]' -- 'nvidia-smi -L | wc -l'
      provision exec --stream -- journalctl -u docker -n 5 --no-pager
      provision exec --json -- uname -r
    """
    from provision import workflow
    from provision.report.command_report import command_document, command_summary, command_text, failed_nodes
    from provision.workflow.remote_commands import run_command

    if not command:
        raise UsageError("no command is given", remedy="Write it behind --, for example: provision exec -- uptime")
    if stream and as_json:
        raise UsageError("--stream and --json exclude each other", remedy="Give one of them.")
    cluster = where.cluster()
    nodes = workflow.chosen(cluster, where.limit)
    text = command[0] if len(command) == 1 else shlex.join(command)
    lines = _Lines() if stream else None
    with patience(f"running the command on {len(nodes)} nodes"):
        results = run_command(nodes, text, seconds=timeout, fanout=fanout, streams=lines)
    failed = failed_nodes(results)
    if as_json:
        print_json(command_document(results))
    elif lines is not None:
        lines.finish()
        if failed:
            show(command_text({name: results[name] for name in failed}))
    else:
        show(command_text(results))
    if failed and not as_json:
        note(f"the command: {command_summary(results)}")
    raise typer.Exit(1 if failed else 0)


class _Lines:
    """Prints lines of all nodes as they arrive: standard output to stdout, standard error to stderr."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receivers: list[LinePrefixer] = []

    def __call__(self, node: str, stream: str) -> LinePrefixer:
        from provision.report.command_report import LinePrefixer

        target = sys.stderr if stream == "stderr" else sys.stdout

        def write(line: str) -> None:
            with self._lock:
                target.write(printable(line) + "\n")
                target.flush()
                log_file.record(stream, line)

        receiver = LinePrefixer(node, write)
        self._receivers.append(receiver)
        return receiver

    def finish(self) -> None:
        """Print incomplete last lines."""
        for receiver in self._receivers:
            receiver.finish()
