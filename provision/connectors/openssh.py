"""Connector that uses the ``ssh`` program, for features that paramiko lacks: hardware keys, ProxyCommand and others."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from provision.commands.ssh import SshSettings, explain_ssh, ssh_argv
from provision.connectors import certificates, failures, known_hosts
from provision.connectors.limits import OUTPUT_LIMIT
from provision.connectors.shell import ShellConnector
from provision.connectors.ssh_auth import exposed_keys
from provision.connectors.subprocesses import LocalProcess
from provision.errors import ConnectionFailed
from provision.model import Node

_SSH_FAILED = 255


class OpenSshConnector(ShellConnector[LocalProcess]):
    """One master connection of the ``ssh`` program. Commands share it, so that a hardware key is touched once."""

    def __init__(self, node: Node, settings: SshSettings, reason: str) -> None:
        super().__init__(node, settings.user, root=settings.user == "root")
        self.agent = node.connection.agent
        self.host = settings.host
        self.reason = reason
        failures.check_strict(node.name, node.connection, settings)
        self._connection = node.connection
        self._settings = settings
        if node.connection.password is not None:
            raise ConnectionFailed(
                f"a login password cannot be used, because {reason}, which requires the ssh program",
                node=node.name,
                remedy="log in with a key instead of ansible_password",
            )
        self._folder = Path(tempfile.mkdtemp(prefix="provision-ssh-"))
        try:
            if not self.agent:  # the first request opens the master connection
                self._process("exec true").result(b"", 30)
        except BaseException:
            self.close()
            raise

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
