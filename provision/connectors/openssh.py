"""Connector that uses the ``ssh`` program, for features that paramiko lacks: hardware keys, ProxyCommand and others."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from provision.commands.ssh import (
    SshSettings,
    agent_command,
    explain_ssh,
    script_command,
    script_stdin,
    ssh_argv,
    sudo_check,
)
from provision.connectors import certificates, failures, known_hosts
from provision.connectors.files import get_through, put_through
from provision.connectors.limits import OUTPUT_LIMIT, started
from provision.connectors.ssh_auth import exposed_keys
from provision.connectors.subprocesses import LocalProcess, finish
from provision.errors import ConnectionFailed
from provision.model import CommandResult, Node

_SSH_FAILED = 255


class OpenSshConnector:
    """One master connection of the ``ssh`` program. Commands share it, so that a hardware key is touched once."""

    def __init__(self, node: Node, settings: SshSettings, reason: str) -> None:
        self.name = node.name
        self.agent = node.connection.agent
        self.host = settings.host
        self.reason = reason
        failures.check_strict(node.name, node.connection, settings)
        self._connection = node.connection
        self._settings = settings
        self._root: bool | None = True if settings.user == "root" else None
        if node.connection.password is not None:
            raise ConnectionFailed(
                f"a login password cannot be used, because {reason}, which requires the ssh program",
                node=node.name,
                remedy="log in with a key instead of ansible_password",
            )
        self._folder = Path(tempfile.mkdtemp(prefix="provision-ssh-"))
        try:
            if not self.agent:  # the first request opens the master connection
                finish(self._process("exec true"), b"", 30)
        except BaseException:
            self.close()
            raise

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
        if self.agent:
            return self._process(agent_command(self.name, script), limit)
        secret = self._connection.become_password
        sudo = become and self._connection.become and not self._is_root()
        password = secret.reveal() if sudo and secret else None
        command = script_command(len(script.encode()), sudo=sudo, password=password is not None)
        return started(self._process(command, limit), script_stdin(script, password=password))

    def put(self, local: Path, remote: str) -> None:
        """Copy one local file to an absolute path on the node, atomically."""
        put_through(self, local, remote)

    def get(self, remote: str, local: Path) -> None:
        """Copy one file from the node."""
        get_through(self, remote, local)

    def close(self) -> None:
        """Close the master connection. Repeated calls have no effect."""
        if self._folder.exists():
            argv = ["ssh", "-o", f"ControlPath={self._control}", "-O", "exit", self._connection.host]
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(argv, capture_output=True, check=False, timeout=5)
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _control(self) -> Path:
        return self._folder / "master"

    def _process(self, command: str, limit: int | None = OUTPUT_LIMIT) -> LocalProcess:
        argv = ssh_argv(self._connection, command, control_path=str(self._control))
        return LocalProcess(self.name, argv, judge=self._judge, limit=limit)

    def _judge(self, code: int, stderr: str) -> ConnectionFailed | None:
        """Return whether ssh itself failed: it exits with 255 and a message; a command's own 255 has no message."""
        problem = explain_ssh(stderr)
        if code >= 0 and (code != _SSH_FAILED or (problem.kind == "other" and not stderr.strip())):
            return None
        settings = self._settings
        names = known_hosts.host_names(settings.host, settings.port, settings.host_key_alias)
        known = known_hosts.trusted(settings.known_hosts, names)
        return failures.from_openssh(
            self.name,
            settings,
            problem,
            known=[key for key in known if not key.marker],
            note=certificates.notes(Path(name).expanduser() for name in settings.identity_files),
            exposed=exposed_keys(settings),
        )

    def _is_root(self) -> bool:
        if self._root is None:
            secret = self._connection.become_password
            process = self._process(sudo_check(password=secret is not None))
            done = finish(process, (secret.reveal() + "\n").encode() if secret else b"", 30)
            if not done.ok:
                raise failures.sudo_refused(self.name, self._settings.user, done.stderr)
            self._root = done.stdout.strip() == "root"
        return self._root
