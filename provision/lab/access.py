"""SSH access to lab nodes: generated keys, recorded host keys, plain OpenSSH.

Both drivers and the manager use this module, so that the host key of a lab node is always checked.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from provision.commands.ssh import script_command, script_stdin
from provision.errors import ConnectionFailed, LabError
from provision.lab.base import LabNode
from provision.local_files import write_private

_SSH_FAILED = 255
_DISTRUST = ("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED", "No ED25519 host key is known")
_CONNECT_SECONDS = 30  # sshd of an emulated node needs more than 10 s for its banner on a busy machine
_BOOTING_LOGIN_SECONDS = 120
_RETRY_SECONDS = 1.0


def ssh_options(folder: Path) -> list[str]:
    """Return the ssh and scp options for every node of the lab in `folder`."""
    return [
        "-F",
        "none",
        "-i",
        _escaped(folder / "id_ed25519"),
        "-o",
        "IdentitiesOnly=yes",
        "-o",
        "BatchMode=yes",
        "-o",
        "StrictHostKeyChecking=yes",
        "-o",
        f'UserKnownHostsFile="{_escaped(folder / "known_hosts")}"',
        "-o",
        "HostKeyAlgorithms=ssh-ed25519",
        "-o",
        f"ConnectTimeout={_CONNECT_SECONDS}",
        "-o",
        "ServerAliveInterval=10",
        "-o",
        "ServerAliveCountMax=6",
        "-o",
        "LogLevel=ERROR",
    ]


def ssh_argv(folder: Path, node: LabNode, *extra: str) -> list[str]:
    """Return the ssh command that logs in to `node` as root; `extra` follows the host (a command or options)."""
    return ["ssh", *ssh_options(folder), "-p", str(node.port), f"root@{node.address}", *extra]


def run_script(
    folder: Path, node: LabNode, script: str, *, stdin: bytes = b"", timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run a POSIX shell script as root on `node`; a non-zero exit code is a result, not an error.

    The script is sent on standard input before `stdin`, so that no process list shows it.

    Raises:
        ConnectionFailed: ssh failed, or the script took longer than `timeout` seconds.
    """
    remote = script_command(script, sudo=False)
    done = _ssh(ssh_argv(folder, node, remote), node, script_stdin(script) + stdin, timeout)
    if done.returncode == _SSH_FAILED:
        raise ConnectionFailed(
            f"ssh to {node.address} port {node.port} failed: {_last_line(done.stderr)}",
            node=node.name,
            remedy="Check the node: provision lab status",
            output=done.stderr,
        )
    return done


def copy(folder: Path, node: LabNode, local: Path, remote: str, *, timeout: float = 600.0) -> None:
    """Copy one file from the controller to the absolute path `remote` on `node`.

    Raises:
        ConnectionFailed: the copy failed; the node may have a part of the file.
    """
    argv = ["scp", "-q", *ssh_options(folder), "-P", str(node.port), str(local), f"root@{node.address}:{remote}"]
    done = _ssh(argv, node, b"", timeout)
    if done.returncode:
        raise ConnectionFailed(
            f"copying {local.name} to {remote} failed: {_last_line(done.stderr)}", node=node.name, output=done.stderr
        )


def wait_for_ssh(
    folder: Path, node: LabNode, *, limit_seconds: float, alive: Callable[[], str | None] = lambda: None
) -> float:
    """Return the seconds until `node` ran a command over SSH.

    `alive` is called between attempts. It returns None while the node may still boot, else the reason why it cannot
    (further lines become the error's output).

    Raises:
        LabError: the node stopped, or did not answer within `limit_seconds`.
        ConnectionFailed: it answered with an unexpected host key.
    """
    begin = time.monotonic()
    argv = ["timeout", str(_BOOTING_LOGIN_SECONDS), *ssh_argv(folder, node, "true")]
    while True:
        done = _ssh(argv, node, b"", _BOOTING_LOGIN_SECONDS + 30.0)
        waited = time.monotonic() - begin
        if done.returncode == 0:
            return waited
        if any(sign in done.stderr for sign in _DISTRUST):
            raise ConnectionFailed(
                f"{node.address} port {node.port} has a host key that is not from the lab",
                node=node.name,
                remedy="Stop the program that uses that port, or take the lab down and up again.",
                output=done.stderr,
            )
        reason = alive()
        if reason is not None:
            what, _, output = reason.partition("\n")
            raise LabError(
                f"the node stopped before it answered on SSH: {what}",
                node=node.name,
                remedy="Run `provision lab up` again; if that fails, take the lab down and up.",
                output=output,
            )
        if waited > limit_seconds:
            raise LabError(
                f"no SSH login within {limit_seconds:.0f} s: {_last_line(done.stderr)}",
                node=node.name,
                remedy="Run `provision lab up` again; if that fails, take the lab down and up.",
            )
        time.sleep(_RETRY_SECONDS)


def make_operator_key(folder: Path) -> str:
    """Create the lab's SSH key ``id_ed25519`` unless it exists; return its public line."""
    return _make_key(folder / "id_ed25519", "provision-lab")


def make_host_key(folder: Path, name: str) -> tuple[Path, str]:
    """Create the host key of node `name` unless it exists; return the private file and the bare public key."""
    private = folder / "hostkeys" / name / "ssh_host_ed25519_key"
    private.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return private, " ".join(_make_key(private, name).split()[:2])


def remember_host_key(folder: Path, host: str, port: int, public: str) -> None:
    """Write the host key of `host` and `port` into the lab's known_hosts, replacing an older one."""
    name = host if port == 22 else f"[{host}]:{port}"  # noqa: PLR2004 - ssh's default port is written bare
    path = folder / "known_hosts"
    with file_lock(folder / "known_hosts.lock"):
        lines = path.read_text().splitlines() if path.exists() else []
        others = [line for line in lines if line.split()[:1] != [name]]
        write_private(path, "\n".join([*others, f"{name} {public}"]) + "\n")


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`, created if missing; it ends at the latest with this process."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make_key(path: Path, comment: str) -> str:
    public = path.with_name(path.name + ".pub")
    if not (path.exists() and public.exists()):
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".key-") as scratch:
            made = Path(scratch) / "key"
            done = subprocess.run(
                [_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(made)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise LabError(f"cannot create the key {path.name}: {_last_line(done.stderr)}", output=done.stderr)
            made.with_name("key.pub").replace(public)
            made.replace(path)
    return public.read_text().strip()


def _ssh(argv: list[str], node: LabNode, data: bytes, timeout: float) -> subprocess.CompletedProcess[str]:
    argv = [_program(argv[0]), *argv[1:]]
    try:
        done = subprocess.run(argv, input=data, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConnectionFailed(
            f"a command over {Path(argv[0]).name} did not end within {timeout:.0f} s", node=node.name
        ) from error
    text = (done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
    return subprocess.CompletedProcess(argv, done.returncode, *text)


def _program(name: str) -> str:
    program = shutil.which(name)
    if program is None:
        raise LabError(f"{name} is not installed on the controller", remedy="Install Debian's package openssh-client.")
    return program


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"
