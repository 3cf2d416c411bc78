"""OpenSSH's settings for nodes, from as few calls of ``ssh -G`` as possible."""

from __future__ import annotations

import ipaddress
import os
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from provision.commands.ssh import SshSettings, parse_settings, settings_argv
from provision.errors import ConnectionFailed
from provision.model import Connection

_ANY_HOST = "provision-any-host"
_AT_ONCE = threading.BoundedSemaphore(2 * (os.cpu_count() or 1))
_READING = re.compile(r"^debug1: Reading configuration data (.+?)\r?$", re.MULTILINE)
_PLAIN_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")


class SshConfig:
    """SSH settings of many nodes, with a cache for the answers of ssh.

    Only ssh evaluates all of Include, Match and tokens in ssh_config. Nodes of one cluster mostly have the same
    connection except for the host. One answer is valid for all of them if no line of ssh_config depends on the host.
    Otherwise ssh is called once per node.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, ...], Future[Any]] = {}

    def settings(self, node: str, connection: Connection) -> SshSettings:
        """Return OpenSSH's settings for the connection's host; ConnectionFailed if ssh rejects its configuration."""
        if _is_plain(connection.host):
            anyone = replace(connection, host=_ANY_HOST)
            shared: SshSettings | None = self._once(("any", *settings_argv(anyone)), lambda: _of_any_host(anyone))
            if shared is not None and connection.host not in _names_in(shared.jumps):
                named = {key: connection.host for key in ("host", "hostname") if key in shared.other}
                return replace(shared, host=connection.host, other={**shared.other, **named})
        argv = settings_argv(connection)
        done: subprocess.CompletedProcess[str] | OSError = self._once(tuple(argv), lambda: _asked(argv))
        if isinstance(done, OSError):
            raise ConnectionFailed(
                f"the ssh program cannot be started: {done.strerror}", node=node, remedy="install openssh-client"
            ) from done
        if done.returncode != 0:
            raise ConnectionFailed(
                f"ssh does not accept its configuration for {connection.host}: {done.stderr.strip()}",
                node=node,
                remedy="correct ssh_config, or ansible_ssh_common_args in the inventory",
            )
        return parse_settings(done.stdout)

    def _once(self, key: tuple[str, ...], make: Callable[[], Any]) -> Any:
        with self._lock:
            answer = self._answers.get(key)
            first = answer is None
            if answer is None:
                answer = self._answers[key] = Future()
        if first:
            try:
                answer.set_result(make())
            except BaseException as error:
                answer.set_exception(error)
                raise
        return answer.result()


def _asked(argv: Sequence[str]) -> subprocess.CompletedProcess[str] | OSError:
    try:
        with _AT_ONCE:
            return subprocess.run(
                argv, capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL
            )
    except OSError as error:
        return error


def _of_any_host(connection: Connection) -> SshSettings | None:
    """Return the answer that is valid for every plain host name; None if it may depend on the host.

    ``ssh -v`` prints which files it reads, including included ones. None of their lines may select hosts, resolve host
    names, or contain a token such as ``%h``.
    """
    program, *rest = settings_argv(connection)
    done = _asked([program, "-v", *rest])
    if isinstance(done, OSError) or done.returncode != 0 or "OpenSSH_" not in done.stderr:
        return None
    if any("%" in word for word in rest) or any(_tells_apart(Path(file)) for file in _READING.findall(done.stderr)):
        return None
    settings = parse_settings(done.stdout)
    return settings if settings.host == connection.host else None


def _tells_apart(file: Path) -> bool:
    """Return whether an ssh_config file may depend on the host; an unreadable file may."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return True
    for line in map(str.strip, lines):
        if not line or line.startswith("#"):
            continue
        keyword, *values = re.split(r"\s*=\s*|\s+", line.replace('"', "").strip())
        word = keyword.lower()
        if "%" in line or word == "match" or word.startswith("canonical") or (word == "host" and values != ["*"]):
            return True
    return False


def _is_plain(host: str) -> bool:
    """Return whether ssh uses the host name unchanged: it has no user, no port and no special characters."""
    if not _PLAIN_NAME.fullmatch(host):
        return False
    if not host.rpartition(".")[2][0].isdigit():
        return True
    try:
        return str(ipaddress.IPv4Address(host)) == host
    except ValueError:
        return False


def _names_in(jumps: Sequence[str]) -> set[str]:
    """Return the hosts of ``user@host:port``; ssh rejects a jump host that is the host itself."""
    return {word for jump in jumps for word in re.split(r"[@:/\[\]]", jump)}
