"""Connectors that run scripts through a shell of the node, as root by sudo where the inventory sets become."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from provision.commands.ssh import agent_command, script_command, script_stdin, sudo_check
from provision.connectors import failures
from provision.connectors.base import RemoteProcess
from provision.connectors.files import get_through, put_through
from provision.connectors.limits import OUTPUT_LIMIT, RUN_SECONDS, SEND_SECONDS, started
from provision.model import CommandResult, Node, Secret

_LOG = logging.getLogger("provision.connectors")


def log_command(node: str, exit_code: int, begun: float) -> None:
    """Log the end of a command that began at a time of `time.monotonic`; its text can contain secrets."""
    _LOG.debug("%s: command: exit status %d after %.2f s", node, exit_code, time.monotonic() - begun)


class ShellProcess(RemoteProcess, Protocol):
    """A process whose whole result can be read at once."""

    def result(self, stdin: bytes, seconds: float) -> CommandResult:
        """Send `stdin` and return all output and the exit status; ConnectionFailed on a timeout."""


ProcessT = TypeVar("ProcessT", bound=ShellProcess)


class ShellConnector(ABC, Generic[ProcessT]):
    """A connection whose subclass only starts commands."""

    agent = False

    def __init__(self, node: Node, user: str, *, root: bool) -> None:
        self.name = node.name
        self.python = node.connection.python
        self.user = user
        """The user of the login."""
        self._become = node.connection.become
        self._password = node.connection.become_password
        self._root: bool | None = True if root else None

    def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        become: bool = True,
        limit: int = OUTPUT_LIMIT,
    ) -> CommandResult:
        """Run a POSIX shell script and wait for it. A non-zero exit status is a result, not an error."""
        begun = time.monotonic()
        process = self._started(script, become=become, limit=limit)
        done = process.result(stdin, RUN_SECONDS if timeout is None else timeout)
        log_command(self.name, done.exit_code, begun)
        return done

    def start(self, script: str, *, become: bool = True, limit: int | None = OUTPUT_LIMIT) -> ProcessT:
        """Start a POSIX shell script with a connected standard input and output."""
        process = self._started(script, become=become, limit=limit)
        _LOG.debug("%s: command: started; its output is read while it runs", self.name)
        return process

    def _started(self, script: str, *, become: bool, limit: int | None) -> ProcessT:
        if self.agent:
            return self._process(agent_command(self.name, script), limit)
        sudo, secret = self.sudo_needed() if become else (False, None)
        password = secret.reveal() if secret else None
        command = script_command(script, sudo=sudo, password=password is not None)
        return started(self._process(command, limit), script_stdin(script, password=password))

    def put(self, local: Path, remote: str) -> None:
        """Copy one local file to an absolute path on the node, atomically."""
        put_through(self, local, remote)

    def get(self, remote: str, local: Path) -> None:
        """Copy one file from the node."""
        get_through(self, remote, local)

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Repeated calls have no effect."""

    @abstractmethod
    def _process(self, command: str, limit: int | None = OUTPUT_LIMIT) -> ProcessT:
        """Start a command of the login shell."""

    def sudo_needed(self) -> tuple[bool, Secret | None]:
        """Return whether commands need sudo, and the password for sudo; ConnectionFailed if sudo refuses."""
        if self._become and self._root is None:
            secret = self._password
            process = self._process(sudo_check(password=secret is not None))
            done = process.result((secret.reveal() + "\n").encode() if secret else b"", SEND_SECONDS)
            if not done.ok:
                raise failures.sudo_refused(self.name, self.user, done.stderr)
            self._root = done.stdout.strip() == "root"
        needed = self._become and not self._root
        return needed, self._password if needed else None
