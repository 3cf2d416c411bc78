"""Runs our programs on nodes, and copies their archive there first where a node does not have it."""

from __future__ import annotations

import weakref

from provision.connectors.base import Connector, RemoteProcess
from provision.connectors.limits import OUTPUT_LIMIT
from provision.errors import NodeError
from provision.model import CommandResult
from provision.node_archive import MISSING, archive, check_script, install_script, memory_script, run_script

_COPY_SECONDS = 60.0
_have_archive: weakref.WeakSet[Connector] = weakref.WeakSet()
"""Connections to nodes that have the archive."""


def run_program(
    connector: Connector,
    program: str,
    *arguments: str,
    stdin: bytes = b"",
    timeout: float | None = None,
    limit: int = OUTPUT_LIMIT,
    stored: bool = True,
) -> CommandResult:
    """Run a program as root on a node and wait for it.

    Args:
        connector: the connection to the node.
        program: a key of ``provision.node.main.PROGRAMS``.
        arguments: the program's arguments.
        stdin: the program's input.
        timeout: seconds; None is one hour.
        limit: maximum number of bytes of output.
        stored: whether the archive is stored on the node; else it is sent again, and needs Python 3.8.

    Raises:
        ConnectionFailed: the node cannot be reached.
        NodeError: the archive cannot be copied to the node.
    """
    if not stored:
        script = memory_script(program, *arguments, python=connector.python)
        return connector.run(script, stdin=archive() + stdin, timeout=timeout, limit=limit)
    script = run_script(program, *arguments, python=connector.python)
    result = connector.run(script, stdin=stdin, timeout=timeout, limit=limit)
    if result.exit_code == MISSING:
        _copy(connector)
        result = connector.run(script, stdin=stdin, timeout=timeout, limit=limit)
    return result


def start_program(
    connector: Connector,
    program: str,
    *arguments: str,
    limit: int | None = OUTPUT_LIMIT,
) -> RemoteProcess:
    """Start a program as root on a node with a connected standard input and output; errors as of `run_program`."""
    if connector not in _have_archive:
        if connector.run(check_script(connector.python), timeout=_COPY_SECONDS).exit_code == MISSING:
            _copy(connector)
        _have_archive.add(connector)
    return connector.start(run_script(program, *arguments, python=connector.python), limit=limit)


def _copy(connector: Connector) -> None:
    result = connector.run(install_script(), stdin=archive(), timeout=_COPY_SECONDS)
    if result.exit_code:
        lines = result.stderr.strip().splitlines()
        cause = lines[-1] if lines else f"exit status {result.exit_code}"
        raise NodeError(
            f"our programs cannot be copied to /run ({cause})",
            node=connector.name,
            remedy="Free memory or space of /run on the node (df -h /run shows it), then run the command again.",
        )
