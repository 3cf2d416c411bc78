"""Host keys: the key that a node sends, trusted keys of the operator, and lines of known_hosts files."""

from __future__ import annotations

import base64
import hashlib
import os
import pwd
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from provision.commands.ssh import parse_settings, settings_argv
from provision.errors import ProvisionError, UsageError
from provision.model import Connection
from provision.threads import outcomes

_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
"""Host key types, preferred first."""
_BLOB_LIMIT = 16_384
"""Maximum number of base64 characters of a public key."""
_SCAN_TYPES = "ed25519,ecdsa,rsa"
_SCAN_SECONDS = 10
_WIDTH = 32
_SSH_PORT = 22

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True)
class HostKey:
    """One public host key."""

    type: str
    blob: str
    """The key in base64, as in known_hosts."""
    revoked: bool = False

    @property
    def fingerprint(self) -> str:
        """SHA256 fingerprint in the format of ``ssh-keygen -l``."""
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


@dataclass(frozen=True)
class Target:
    """Address of a node's sshd, after ssh_config is applied."""

    name: str
    connection: Connection
    host: str
    port: int
    user: str
    jumps: tuple[str, ...] = ()
    proxied: bool = False
    """ssh_config sets a ProxyCommand."""
    names: tuple[str, ...] = ()
    """Names under which ssh searches for its key."""
    trusted_files: tuple[Path, ...] = field(default=())
    """The operator's own known_hosts files."""


def target_of(name: str, connection: Connection) -> Target:
    """Return the target of `connection` after OpenSSH has applied ssh_config."""
    settings = parse_settings(_run(settings_argv(connection)).stdout)
    host = settings.host or connection.host
    alias = settings.host_key_alias
    names = [alias] if alias else [_known_name(host, settings.port), _known_name(connection.host, settings.port)]
    own = [Path(pwd.getpwuid(os.getuid()).pw_dir, ".ssh", "known_hosts"), Path("~/.ssh/known_hosts").expanduser()]
    files = [Path(text).expanduser() for text in settings.known_hosts]
    return Target(
        name,
        connection,
        host,
        settings.port,
        settings.user,
        jumps=settings.jumps,
        proxied=settings.other.get("proxycommand", "") not in ("", "none"),
        names=tuple(dict.fromkeys(names)),
        trusted_files=tuple(dict.fromkeys([*files, *own])),
    )


def scan(target: Target) -> list[HostKey]:
    """Return every key of the node's sshd; ProvisionError if none can be read.

    For a node with jump hosts, the last jump host reads the keys.
    """
    if target.proxied:
        raise UsageError(
            "ssh_config sets a ProxyCommand, through which host keys cannot be read",
            node=target.name,
            remedy="Specify a file that contains its key: --known-hosts FILE",
        )
    argv = ["ssh-keyscan", "-T", str(_SCAN_SECONDS), "-p", str(target.port), "-t", _SCAN_TYPES, target.host]
    if target.jumps:
        *before, last = target.jumps
        way = ["-J", ",".join(before)] if before else []
        argv = [
            *("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=10"),
            *(*way, "--", f"ssh://{last}", shlex.join(argv)),
        ]
    done = _run(argv)
    keys = _keys(done.stdout)
    if not keys:
        raise ProvisionError(
            f"no SSH host key could be read from {_known_name(target.host, target.port)}"
            f"{' through ' + ','.join(target.jumps) if target.jumps else ''}: {_scan_reason(done.stderr)}",
            node=target.name,
            remedy=f"Log in to the jump host once, so that its key is in your known_hosts: ssh {target.jumps[-1]}"
            if "Host key verification failed" in done.stderr
            else "Check the name or address, the port (--port) and that sshd runs there.",
        )
    return sorted(keys, key=_rank)


def known_keys(target: Target, files: Iterable[Path]) -> list[HostKey]:
    """Return the node's keys in known_hosts `files`, including hashed ones, in order of preference."""
    bare = [target.connection.host, target.host, target.name]
    keys: list[HostKey] = []
    for file in files:
        if not file.is_file():
            continue
        for name in dict.fromkeys([*target.names, *bare]):
            keys = _keys(_run(["ssh-keygen", "-F", name, "-f", str(file)]).stdout)
            if keys:
                return sorted(keys, key=_rank)
    return []


def known_line_numbers(target: Target, file: Path) -> set[int]:
    """Return the line numbers of a known_hosts file that match the node, including hashed names and patterns."""
    numbers: set[int] = set()
    for name in target.names:
        printed = _run(["ssh-keygen", "-F", name, "-f", str(file)]).stdout
        numbers.update(int(number) for number in re.findall(r"^# Host .* found: line (\d+)", printed, re.MULTILINE))
    return numbers


def preferred(keys: Sequence[HostKey]) -> HostKey:
    """Return the key to record: the first of the preferred type."""
    return min(keys, key=_rank)


def line_for(target: Target, key: HostKey) -> str:
    """Return the known_hosts line of a node. Its comment is the inventory name, which identifies the line."""
    return f"{','.join(target.names)} {key.type} {key.blob} {target.name}"


def in_parallel(function: Callable[[In], Out], items: Sequence[In]) -> list[Out | ProvisionError]:
    """Apply `function` to all items in parallel; an item's ProvisionError is its result."""
    results: list[Out | ProvisionError] = []
    for outcome in outcomes(function, items, limit=_WIDTH):
        if isinstance(outcome, Exception) and not isinstance(outcome, ProvisionError):
            raise outcome
        results.append(outcome)
    return results


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=90, check=False
        )
    except FileNotFoundError as error:
        raise ProvisionError(
            f"the program {argv[0]} is not installed", remedy="apt-get install openssh-client"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ProvisionError(f"{argv[0]} did not answer within 90 s") from error


def _known_name(host: str, port: int) -> str:
    return host if port == _SSH_PORT else f"[{host}]:{port}"


def _keys(text: str) -> list[HostKey]:
    keys = []
    for line in text.splitlines():
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        is_key = len(words) >= 3 and words[1] in _TYPES and _is_blob(words[2], words[1])  # noqa: PLR2004 - name, type, key
        if is_key and marker in ("", "@revoked"):
            keys.append(HostKey(words[1], words[2], revoked=marker == "@revoked"))
    return list(dict.fromkeys(keys))


def _is_blob(text: str, kind: str) -> bool:
    """Return whether a text is a base64 public key of a type. Nodes and jump hosts may send any text."""
    try:
        blob = base64.b64decode(text, validate=True)
    except ValueError:
        return False
    name = kind.encode()
    return len(text) <= _BLOB_LIMIT and blob.startswith(len(name).to_bytes(4, "big") + name)


def _rank(key: HostKey) -> int:
    return _TYPES.index(key.type)


def _scan_reason(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith("#")]
    return lines[-1] if lines else f"no answer within {_SCAN_SECONDS} s"
