"""The controller as a node (``ansible_connection: local``): the same interface without SSH."""

from __future__ import annotations

import getpass
import os
import subprocess
from pathlib import Path

from provision.commands.ssh import script_command, script_stdin, sudo_check
from provision.connectors import failures
from provision.connectors.files import get_through, put_through
from provision.connectors.limits import OUTPUT_LIMIT, started
from provision.connectors.subprocesses import LocalProcess, finish
from provision.model import CommandResult, Node


class LocalConnector:
    """Runs commands on the controller."""

    reason = "the inventory says ansible_connection: local"

    def __init__(self, node: Node) -> None:
        self.name = node.name
        self.agent = False
        self._become = node.connection.become
        self._password = node.connection.become_password
        self._root: bool | None = True if os.geteuid() == 0 else None

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
        return finish(self.start(script, become=become, limit=limit), stdin, timeout)

    def start(self, script: str, *, become: bool = True, limit: int | None = OUTPUT_LIMIT) -> LocalProcess:
        """Start a POSIX shell script with a connected standard input and output."""
        sudo = become and self._become and not self._is_root()
        password = self._password.reveal() if sudo and self._password else None
        command = script_command(len(script.encode()), sudo=sudo, password=password is not None)
        process = LocalProcess(self.name, ["sh", "-c", command], limit=limit)
        return started(process, script_stdin(script, password=password))

    def put(self, local: Path, remote: str) -> None:
        """Copy one local file to an absolute path, atomically."""
        put_through(self, local, remote)

    def get(self, remote: str, local: Path) -> None:
        """Copy one file."""
        get_through(self, remote, local)

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def _is_root(self) -> bool:
        if self._root is None:
            secret = self._password.reveal() + "\n" if self._password else ""
            done = subprocess.run(
                ["sh", "-c", sudo_check(password=self._password is not None)],
                input=secret,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise failures.sudo_refused(self.name, getpass.getuser(), done.stderr)
            self._root = done.stdout.strip() == "root"
        return self._root
