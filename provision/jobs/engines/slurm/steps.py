"""Connections to the nodes of an allocation: steps of the job in Slurm, without SSH."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
from collections.abc import Mapping, Sequence

from provision.connectors.limits import OUTPUT_LIMIT
from provision.connectors.shell import ShellConnector
from provision.connectors.subprocesses import LocalProcess
from provision.errors import ConnectionFailed, NodeError
from provision.model import CommandResult, Connection, Node
from provision.model.reason import reason
from provision.node.slurm.compute import KEYS
from provision.report.reasons import error_of

_SEAL_SECONDS = 60
_ENV = ("PATH", "HOME", "LC_ALL", "SLURM_CONF")


class HereConnector(ShellConnector[LocalProcess]):
    """Runs commands on the node of the batch script, outside of any step: cancelling the job does not end them."""

    reason = "the batch script runs on this node"

    def __init__(self, name: str) -> None:
        super().__init__(_node(name), "root", root=True)

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def _process(self, command: str, limit: int | None = OUTPUT_LIMIT) -> LocalProcess:
        return LocalProcess(self.name, ["env", "-i", *_environment(), "sh", "-c", command], limit=limit)


class StepConnector(ShellConnector[LocalProcess]):
    """Runs commands in steps of a job on one of its nodes.

    Slurm does not encrypt the input of steps, so it is encrypted for the key of the node.

    Args:
        name: the node in the inventory.
        slurm: its name in Slurm.
        job: the number of the job.
        certificate: of the node's key, in a file.
        gpus: the option of srun for the GPUs of each step; without it, those that the job requests for each node.

    Raises:
        NodeError: there is no certificate: the input would be sent in clear.
    """

    reason = "the node is part of the allocation"

    def __init__(self, name: str, slurm: str, job: int, certificate: str, gpus: str = "") -> None:
        super().__init__(_node(name), "root", root=True)
        if not certificate:
            raise error_of(NodeError, reason("slurm.certificate", cause="it is empty"), node=name)
        self._certificate = certificate
        self._srun = [
            "env", "-i", *_environment(), "srun", "--quiet", "--overlap", f"--jobid={job}", "-N1", "-n1", "-w", slurm,
            "--mem=0", "--cpu-bind=none", "--gpu-bind=none", "--export=ALL", *filter(None, [gpus]), "sh", "-c",
        ]  # fmt: skip

    def close(self) -> None:
        """Do nothing: each step is a connection of its own."""

    def _process(self, command: str, limit: int | None = OUTPUT_LIMIT) -> LocalProcess:
        key, own = f"{KEYS}/key.pem", f"{KEYS}/certificate.pem"
        opened = (
            f"openssl cms -decrypt -binary -inform DER -recip {shlex.quote(own)} -inkey {shlex.quote(key)} "
            f"| sh -c {shlex.quote(command)}"
        )
        return SealedProcess(self.name, [*self._srun, opened], self._certificate, limit=limit)


class SealedProcess(LocalProcess):
    """A process whose input is encrypted; it gets its input when all of it is there."""

    def __init__(self, node: str, argv: Sequence[str], certificate: str, *, limit: int | None) -> None:
        super().__init__(node, argv, limit=limit)
        self._certificate, self._pieces, self._sent = certificate, list[bytes](), False
        self._sending = threading.Lock()

    def write(self, data: bytes) -> None:
        """Add to the input, which is sent by `close_stdin`."""
        if self._sent:
            super().write(data)
        else:
            self._pieces.append(data)

    def close_stdin(self) -> None:
        """Encrypt and send the input, and close it."""
        with self._sending:
            sent, self._sent = self._sent, True
        if not sent:
            super().write(_sealed(b"".join(self._pieces), self._certificate, self._node))
        super().close_stdin()

    def result(self, stdin: bytes, seconds: float) -> CommandResult:
        """Send `stdin` and return all output and the exit status; NodeError if it cannot be encrypted."""
        self._sent = True
        try:
            sealed = _sealed(b"".join([*self._pieces, stdin]), self._certificate, self._node)
        except BaseException:
            self.close()
            raise
        return super().result(sealed, seconds)


def _sealed(data: bytes, certificate: str, node: str) -> bytes:
    """Return data that only the key of a node decrypts."""
    words = ["openssl", "cms", "-encrypt", "-binary", "-aes-256-cbc", "-outform", "DER", certificate]
    try:
        done = subprocess.run(words, input=data, capture_output=True, timeout=_SEAL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConnectionFailed(f"openssl: {error}"[:300], node=node) from error
    if done.returncode:
        raise NodeError(
            "openssl cannot encrypt for the key of the node", node=node, output=done.stderr.decode(errors="replace")
        )
    return done.stdout


def _node(name: str) -> Node:
    return Node(name, Connection(name))


def _environment() -> list[str]:
    """Return the variables of commands: none of the job, which would constrain a step."""
    values: Mapping[str, str] = os.environ
    return [f"{key}={values[key]}" for key in _ENV if key in values]
