"""One command, or one file, on many nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from provision import connectors
from provision.errors import NotStarted, ProvisionError
from provision.model import CommandResult, Node
from provision.threads import outcomes

if TYPE_CHECKING:
    from provision.connectors.fabric_group import StreamFactory

NODES_AT_ONCE = 1024
"""Nodes with an open connection at one time."""


def run_command(
    nodes: Sequence[Node], command: str, *, seconds: float, fanout: int, streams: StreamFactory | None = None
) -> dict[str, CommandResult | ProvisionError]:
    """Run a shell command on `nodes` in parallel; the results are in the order of `nodes`.

    A command runs as root where the inventory sets ansible_become. A node's failure is its result: `NotStarted` where
    the command never ran.
    """
    results: dict[str, CommandResult | ProvisionError] = {}
    for start in range(0, len(nodes), NODES_AT_ONCE):
        with connectors.connections(nodes[start : start + NODES_AT_ONCE]) as opened:
            results |= _run(opened, command, seconds, fanout, streams)
    return {node.name: results[node.name] for node in nodes}


def copy_file(nodes: Sequence[Node], source: Path, target: str) -> dict[str, ProvisionError | None]:
    """Copy a file of this machine to an absolute path on all nodes in parallel; it appears whole, or not at all.

    The error of a node that could not be logged in to is `NotStarted`.
    """
    reached: set[str] = set()

    def put(connector: connectors.Connector) -> None:
        reached.add(connector.name)
        connector.put(source, target)

    results = connectors.each(nodes, put)
    return {
        name: _not_started(error) if error is not None and name not in reached else error
        for name, error in results.items()
    }


def _run(
    opened: dict[str, connectors.Connector | ProvisionError],
    command: str,
    seconds: float,
    fanout: int,
    streams: StreamFactory | None,
) -> dict[str, CommandResult | ProvisionError]:
    from provision.connectors.fabric_group import run_in_group
    from provision.connectors.ssh import SshConnector

    results: dict[str, CommandResult | ProvisionError] = {
        name: _not_started(one) for name, one in opened.items() if isinstance(one, ProvisionError)
    }
    in_process = [one for one in opened.values() if isinstance(one, SshConnector)]
    programs = [one for one in opened.values() if not isinstance(one, SshConnector | ProvisionError)]
    results |= run_in_group(in_process, command, seconds=seconds, fanout=fanout, streams=streams)
    done = outcomes(lambda one: one.run(command, timeout=seconds), programs, limit=fanout)
    for one, outcome in zip(programs, done, strict=True):
        if isinstance(outcome, Exception) and not isinstance(outcome, ProvisionError):
            raise outcome
        results[one.name] = outcome
        if streams is not None and isinstance(outcome, CommandResult):
            streams(one.name, "stdout").write(outcome.stdout)
            streams(one.name, "stderr").write(outcome.stderr)
    return results


def _not_started(error: ProvisionError) -> NotStarted:
    return NotStarted(error.message, node=error.node, remedy=error.remedy, output=error.output)
