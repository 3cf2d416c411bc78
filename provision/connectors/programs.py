"""Runs our programs on nodes, and copies their archive there first where a node does not have it."""

from __future__ import annotations

from provision import node_archive
from provision.connectors.base import Connector, RemoteProcess
from provision.connectors.limits import OUTPUT_LIMIT
from provision.errors import NodeError, PythonMissing
from provision.model import CommandResult
from provision.node_archive import archive, check_script, memory_script, run_script, store_archive_script

_COPY_SECONDS = 60.0
_AGAIN = "Run the command again. If it fails again, check the node's memory (dmesg) and the network."
_INSTALL = "Run `provision apply` for the node, which installs python3, or install it there."
_PROBLEMS = {
    node_archive.NO_PYTHON: ("there is no {python} on this node", _INSTALL),
    node_archive.INCOMPLETE_PYTHON: ("{python} on this node is incomplete ({cause})", _INSTALL),
    node_archive.OLD_PYTHON: (
        "{python} on this node is too old ({cause}; Python 3.6 is required)",
        "Install a newer Python on the node, and set ansible_python_interpreter to its path.",
    ),
    node_archive.NO_MEMORY_FILES: (
        "our programs cannot run from memory on this node (Linux 3.17 and glibc 2.27 are required)",
        "Run the command without --read-only: it stores our programs in /run until the next boot.",
    ),
    node_archive.READ_ONLY: (
        "our programs cannot be copied to /run, which is read-only ({cause})",
        "Check why on the node (dmesg). Remount it (mount -o remount,rw /run), or reboot.",
    ),
    node_archive.NO_SPACE: (
        "our programs cannot be copied to /run ({cause})",
        "Free memory, or space and inodes of /run on the node: `df -h /run; df -i /run` shows them.",
    ),
    node_archive.DAMAGED: ("our programs arrived incomplete on the node", _AGAIN),
    node_archive.MISSING: (
        "our programs were copied to the node, and are missing or damaged there",
        "Check which program changes files in /run/provision/programs, and the node's memory (dmesg).",
    ),
}
"""Exit status -> message and remedy of a program that was not started."""
_NO_MEMORY_FOR_USERS = "Set cluster_slurm_login to a login node with a newer operating system."


def run_program(
    connector: Connector,
    program: str,
    *arguments: str,
    stdin: bytes = b"",
    timeout: float | None = None,
    limit: int = OUTPUT_LIMIT,
    stored: bool = True,
    become: bool = True,
) -> CommandResult:
    """Run a program as root on a node and wait for it.

    Args:
        connector: the connection to the node.
        program: a key of ``provision.node.main.PROGRAMS``.
        arguments: the program's arguments.
        stdin: the program's input.
        timeout: seconds; None is one hour.
        limit: maximum number of bytes of output.
        stored: whether the archive is stored on the node; else it is sent again, and runs from memory. An archive that
            cannot be stored, because `/run` is full or read-only, is sent again, too.
        become: whether the program runs as root; else it is not stored.

    Raises:
        ConnectionFailed: the node cannot be reached.
        PythonMissing: the node has no usable interpreter.
        NodeError: the archive cannot be copied to the node, or the interpreter is too old.
    """

    def from_memory() -> CommandResult:
        script = memory_script(program, *arguments, python=connector.python)
        return connector.run(script, stdin=archive() + stdin, timeout=timeout, become=become, limit=limit)

    if not stored or not become:
        result = from_memory()
        if not become and result.exit_code == node_archive.NO_MEMORY_FILES:
            message, _ = _PROBLEMS[result.exit_code]
            raise NodeError(message, node=connector.name, remedy=_NO_MEMORY_FOR_USERS)
        return _checked(connector, result)
    script = run_script(program, *arguments, python=connector.python)
    result = connector.run(script, stdin=stdin, timeout=timeout, limit=limit)
    if result.exit_code != node_archive.MISSING:
        return _checked(connector, result)
    stored_result = _store(connector)
    if stored_result.ok:
        return _checked(connector, connector.run(script, stdin=stdin, timeout=timeout, limit=limit))
    if stored_result.exit_code not in (node_archive.NO_SPACE, node_archive.READ_ONLY):
        return _checked(connector, stored_result)
    result = from_memory()
    return _checked(connector, stored_result if result.exit_code == node_archive.NO_MEMORY_FILES else result)


def start_program(
    connector: Connector,
    program: str,
    *arguments: str,
    limit: int | None = OUTPUT_LIMIT,
) -> RemoteProcess:
    """Start a program as root on a node with a connected standard input and output; errors as of `run_program`."""
    result = connector.run(check_script(connector.python), timeout=_COPY_SECONDS)
    if result.exit_code == node_archive.MISSING:
        result = _store(connector)
    if not _checked(connector, result).ok:
        raise NodeError(
            "our programs cannot be started", node=connector.name, output=result.last_lines(), remedy=_AGAIN
        )
    return connector.start(run_script(program, *arguments, python=connector.python), limit=limit)


def _store(connector: Connector) -> CommandResult:
    """Copy the archive to the node."""
    return connector.run(store_archive_script(), stdin=archive(), timeout=_COPY_SECONDS)


def _checked(connector: Connector, result: CommandResult) -> CommandResult:
    """Return the result of a program; raise an error if the program was not started."""
    if result.exit_code not in _PROBLEMS:
        return result
    message, remedy = _PROBLEMS[result.exit_code]
    kind = NodeError
    if result.exit_code in (node_archive.NO_PYTHON, node_archive.INCOMPLETE_PYTHON):
        kind = PythonMissing
        if connector.python != "python3":
            remedy = "Correct ansible_python_interpreter in the inventory."
    raise kind(message.format(python=connector.python, cause=result.last_lines(1)), node=connector.name, remedy=remedy)
