"""Run one command on many nodes with Fabric's group API over connections of `SshConnector`.

Fabric's own connections are not used because they accept unknown host keys.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import fabric
import invoke
from paramiko import SSHConfig

from provision.connectors import failures
from provision.connectors.limits import late
from provision.connectors.shell import log_command
from provision.connectors.ssh import SshConnector
from provision.errors import ConnectionFailed, NotStarted, ProvisionError
from provision.model import CommandResult, Secret

OUTPUT_LIMIT = 4 * 1024 * 1024
"""Maximum output in bytes per node; Fabric joins all output again for each kilobyte that arrives."""


class TextStream(Protocol):
    """Receives the output of a node while the command runs."""

    def write(self, text: str) -> object:
        """Process the next piece of output."""

    def flush(self) -> object:
        """Write buffered output."""


StreamFactory = Callable[[str, str], TextStream]
"""Returns the receiver for a node's name and ``"stdout"`` or ``"stderr"``."""


class _NodeConnection(fabric.Connection):  # type: ignore[misc] # Fabric has no types
    """A Fabric connection over the transport of a connector, which has verified the host key and logged in."""

    connector: Any = None  # Declared here, because Fabric turns unknown attributes into configuration keys.
    sudo_password: Secret | None = None
    needs_sudo: bool = False
    streams: Mapping[str, TextStream] = {}

    def __init__(self, connector: SshConnector, streams: StreamFactory | None) -> None:
        # With an empty SSH configuration and lazy=True Fabric reads no configuration files.
        super().__init__(connector.name, config=fabric.Config(ssh_config=SSHConfig(), lazy=True))
        self.connector = connector
        self.needs_sudo, self.sudo_password = connector.sudo_needed()
        if streams is not None:
            self.streams = {
                "out_stream": streams(connector.name, "stdout"),
                "err_stream": streams(connector.name, "stderr"),
            }

    @property
    def is_connected(self) -> bool:
        """Return True: the connector is connected."""
        return True

    def create_session(self) -> Any:
        """Open a session with limited output."""
        return self.connector.limited_session(OUTPUT_LIMIT)

    def run(self, command: str, **options: Any) -> fabric.Result:
        """Run a shell command, as root if the inventory requires it."""
        options |= self.streams
        begun = time.monotonic()
        result = self._run_shell(f"sh -c {shlex.quote(command)}", options)
        if result.exited < 0:  # the channel was closed without an exit status
            in_time = time.monotonic() - begun < options["timeout"]
            raise self._broke() if in_time else late(self.connector.name, options["timeout"])
        log_command(self.connector.name, result.exited, begun)
        return result

    def _run_shell(self, shell: str, options: dict[str, Any]) -> fabric.Result:
        if not self.needs_sudo:
            return super().run(shell, **options)
        if self.sudo_password is None:
            return super().run(f"sudo -n -- {shell}", **options)
        return super().sudo(shell, password=self.sudo_password.reveal(), **options)

    def _broke(self) -> ConnectionFailed:
        return failures.broke(self.connector.name, self.connector.host, "running a command")


def run_in_group(
    connectors: Sequence[SshConnector], command: str, *, seconds: float, fanout: int, streams: StreamFactory | None
) -> dict[str, CommandResult | ProvisionError]:
    """Run a shell command on all nodes, on `fanout` nodes in parallel. The failure of a node is its result."""
    results: dict[str, CommandResult | ProvisionError] = {}
    for start in range(0, len(connectors), fanout):
        chunk = connectors[start : start + fanout]
        group = fabric.ThreadingGroup.from_connections([_NodeConnection(one, streams) for one in chunk])
        options = {"hide": streams is None, "warn": True, "in_stream": False, "encoding": "utf-8", "timeout": seconds}
        try:
            done = group.run(command, **options)
        except fabric.exceptions.GroupException as error:
            done = error.result
        for connection, outcome in done.items():
            results[connection.connector.name] = _result(connection.connector, outcome)
    return results


def _result(connector: SshConnector, outcome: object) -> CommandResult | ProvisionError:
    if isinstance(outcome, fabric.Result):
        return CommandResult(outcome.stdout, outcome.stderr, outcome.exited)
    if isinstance(outcome, invoke.exceptions.ThreadException):
        outcome = next(iter(outcome.exceptions)).value
    if isinstance(outcome, ProvisionError):
        return outcome
    if isinstance(outcome, invoke.exceptions.CommandTimedOut):
        return late(connector.name, outcome.timeout)
    if isinstance(outcome, invoke.exceptions.AuthFailure):
        refused = failures.sudo_refused(connector.name, connector.user, outcome.result.stderr)
        return NotStarted(refused.message, node=refused.node, remedy=refused.remedy, output=refused.output)
    if isinstance(outcome, Exception):  # paramiko's thread re-raises errors about data of the node
        return failures.broke(connector.name, connector.host, "running a command")
    return ConnectionFailed("no result", node=connector.name)
