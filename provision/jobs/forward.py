"""Commands of this machine that reach into a job: a port of its node here, a shell where it runs."""

from __future__ import annotations

from collections.abc import Sequence

from provision.commands.shell import join
from provision.commands.ssh import ssh_argv
from provision.model import Connection

_AS_ROOT = 'if [ "$(id -u)" = 0 ]; then exec {0}; else exec sudo {0}; fi'


def forward_argv(connection: Connection, local: int, address: str, port: int) -> list[str]:
    """Return the ssh command that brings a port of `address`, as the node sees it, to 127.0.0.1 of this machine.

    It runs until it is interrupted, and ends at once when the port here is taken. Host keys are checked as always.
    """
    line = ssh_argv(connection, "")[:-1]
    place = f"[{address}]" if ":" in address else address
    forward = f"127.0.0.1:{local}:{place}:{port}"
    return [line[0], "-N", "-o", "ExitOnForwardFailure=yes", "-L", forward, *line[1:]]


def attach_argv(connection: Connection, container: str, argv: Sequence[str], *, terminal: bool = True) -> list[str]:
    """Return the ssh command that runs `argv` in a container, with a terminal of its own or without."""
    words = ["docker", "exec", "--interactive", *(["--tty"] if terminal else []), container, *argv]
    return _as_root(connection, words, terminal=terminal)


def attach_unit_argv(
    connection: Connection, folder: str, unit: str, argv: Sequence[str], *, terminal: bool = True
) -> list[str]:
    """Return the ssh command that runs `argv` in a unit, of the attempt whose folder on the node this is."""
    program = [connection.python, "-I", "-S", f"{folder}/programs/node.pyz", "attach", f"/run/provision/units/{unit}"]
    return _as_root(connection, [*program, *argv], terminal=terminal)


def _as_root(connection: Connection, words: Sequence[str], *, terminal: bool) -> list[str]:
    command = join(["sh", "-c", _AS_ROOT.format(join(words))]) if connection.become else join(words)
    line = ssh_argv(connection, command)
    quiet = ["-t", "-o", "LogLevel=ERROR"]  # without ssh's own "Connection to ... closed."
    return [line[0], *(quiet if terminal else []), *line[1:]]
