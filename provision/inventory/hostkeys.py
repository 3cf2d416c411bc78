"""Host keys: what a node shows, what the operator already trusts, and the lines of a known_hosts file."""

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

__all__ = [
    "HostKey",
    "Target",
    "in_parallel",
    "known_keys",
    "known_line_numbers",
    "line_for",
    "preferred",
    "scan",
    "target_of",
]

_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
"""Host key types, the ones to prefer first."""
_BLOB_LIMIT = 16_384
"""Characters of a public key in base64."""
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
    """The key in base64, as known_hosts holds it."""
    revoked: bool = False

    @property
    def fingerprint(self) -> str:
        """The SHA256 fingerprint, as ``ssh-keygen -l`` prints it."""
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


@dataclass(frozen=True)
class Target:
    """Where a node's sshd answers, once ssh_config has had its say."""

    name: str
    connection: Connection
    host: str
    port: int
    user: str
    jumps: tuple[str, ...] = ()
    proxied: bool = False
    """ssh_config reaches it by a ProxyCommand."""
    names: tuple[str, ...] = ()
    """The names under which ssh looks its key up."""
    trusted_files: tuple[Path, ...] = field(default=())
    """The operator's own known_hosts files."""


def target_of(name: str, connection: Connection) -> Target:
    """Ask OpenSSH where `connection` really leads."""
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
    """Return every key that the node's sshd shows now; ProvisionError when none can be had.

    Behind a jump host, the last jump host does the looking.
    """
    if target.proxied:
        raise UsageError(
            "ssh_config reaches it by a ProxyCommand, through which its key cannot be looked up",
            node=target.name,
            remedy="Give a file that holds its key: --known-hosts FILE",
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
            f"{' by way of ' + ','.join(target.jumps) if target.jumps else ''}: {_scan_reason(done.stderr)}",
            node=target.name,
            remedy=f"Reach the jump host once yourself, so that its key is in your known_hosts: ssh {target.jumps[-1]}"
            if "Host key verification failed" in done.stderr
            else "Check the name or address, the port (--port) and that sshd runs there.",
        )
    return sorted(keys, key=_rank)


def known_keys(target: Target, files: Iterable[Path]) -> list[HostKey]:
    """Return the keys that known_hosts `files`, hashed ones too, hold for the node, in order of preference."""
    bare = [target.connection.host, target.host, target.name]
    found: list[HostKey] = []
    for file in files:
        if not file.is_file():
            continue
        for name in dict.fromkeys([*target.names, *bare]):
            found = _keys(_run(["ssh-keygen", "-F", name, "-f", str(file)]).stdout)
            if found:
                return sorted(found, key=_rank)
    return []


def known_line_numbers(target: Target, file: Path) -> set[int]:
    """Return the numbers of the lines of a known_hosts file that speak of the node; hashed names and patterns too."""
    found: set[int] = set()
    for name in target.names:
        printed = _run(["ssh-keygen", "-F", name, "-f", str(file)]).stdout
        found.update(int(number) for number in re.findall(r"^# Host .* found: line (\d+)", printed, re.MULTILINE))
    return found


def preferred(keys: Sequence[HostKey]) -> HostKey:
    """Return the key to pin: the first of the best type."""
    return min(keys, key=_rank)


def line_for(target: Target, key: HostKey) -> str:
    """Return the known_hosts line of a node; its comment is the inventory name, by which it is found again."""
    return f"{','.join(target.names)} {key.type} {key.blob} {target.name}"


def in_parallel(function: Callable[[In], Out], items: Sequence[In]) -> list[Out | ProvisionError]:
    """Apply `function` to all items at once; an item's ProvisionError is its result."""
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
            f"the program {argv[0]} is not installed here", remedy="apt-get install openssh-client"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ProvisionError(f"{argv[0]} gave no answer within 90 s") from error


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
    """Return whether a text is a public key of a type in base64: what a node or a jump host sends may be anything."""
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
