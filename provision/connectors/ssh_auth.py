"""SSH logins with the operator's keys: agent, key files, then a password if the inventory has one."""

from __future__ import annotations

import copy
import os
import shlex
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from provision.commands.ssh import SshSettings, is_exposed
from provision.connectors import certificates, failures
from provision.connectors.file_cache import remembered
from provision.connectors.known_hosts import fingerprint
from provision.errors import ConnectionFailed, InventoryError, UsageError
from provision.model import Node, Secret

if TYPE_CHECKING:
    import paramiko


@dataclass
class _Attempts:
    tried: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def authenticate(node: str, transport: paramiko.Transport, settings: SshSettings, password: Secret | None) -> None:
    """Log in, or raise ConnectionFailed with the user and every key that was tried."""
    import paramiko

    attempts = _Attempts()
    try:
        for label, key in _keys(settings, attempts):
            attempts.tried.append(label)
            if _try_key(transport, settings.user, key):
                return
        if password is not None:
            attempts.tried.append("the password of the inventory")
            transport.auth_password(settings.user, password.reveal())
            return
    except paramiko.AuthenticationException:
        pass
    except (paramiko.SSHException, EOFError, OSError):
        if not attempts.tried:
            raise
        attempts.notes.append("; the node then closed the connection (its MaxAuthTries?)")
    notes = "".join(attempts.notes) + certificates.notes(map(_expand, settings.identity_files))
    raise failures.login_refused(node, settings.user, settings.host, attempts.tried, notes, exposed_keys(settings))


def _try_key(transport: paramiko.Transport, user: str, key: paramiko.PKey) -> bool:
    import paramiko

    # paramiko polls ten times a second, which is too slow for a thousand parallel logins
    answered = threading.Event()
    transport.auth_publickey(user, key, answered)
    handler = transport.auth_handler
    if handler is None or not answered.wait(transport.auth_timeout):
        return False
    try:
        return not handler.wait_for_response(answered)
    except paramiko.BadAuthenticationType:
        raise
    except paramiko.AuthenticationException:
        return False


def _keys(settings: SshSettings, attempts: _Attempts) -> Iterator[tuple[str, paramiko.PKey]]:
    """Yield keys in OpenSSH's order: agent keys of ssh_config, other agent keys, then key files."""
    agent = _agent_keys()
    files = {path: _public_blob(path) if agent else None for path in map(_expand, settings.identity_files)}
    named = {blob for blob in files.values() if blob}
    held = {key.asbytes() for key in agent}
    wanted = [key for key in agent if key.asbytes() in named]
    others = [] if settings.identities_only else [key for key in agent if key.asbytes() not in named]
    for key in (*wanted, *others):
        yield f"agent key {key.get_name()} {fingerprint(key.asbytes())}", key
    for path, blob in files.items():
        if path.exists() and blob not in held and not _is_exposed(path):
            yield from _load(path, attempts)


def _load(path: Path, attempts: _Attempts) -> Iterator[tuple[str, paramiko.PKey]]:
    """Yield the key of a file with its certificate, if there is one, and then without it, as OpenSSH does."""
    import paramiko

    try:
        plain = copy.copy(_private_key(path))
        plain.public_blob = None
        certificate = certificates.certificate_of(path)
        if certificate.exists():
            certified = copy.copy(plain)
            certified.load_certificate(str(certificate))
            yield f"{path} with {certificate.name}", certified
        yield str(path), plain
    except (paramiko.PasswordRequiredException, TypeError):
        attempts.notes.append(f"; {path} requires a passphrase: load it with ssh-add")
    except OSError as error:
        attempts.notes.append(f"; {path} cannot be read: {error.strerror}")
    except (paramiko.SSHException, ValueError):
        attempts.notes.append(f"; {path} is not a supported private key")


@remembered
def _private_key(path: Path) -> paramiko.PKey:
    import paramiko

    return paramiko.PKey.from_path(path)


def exposed_keys(settings: SshSettings) -> list[Path]:
    """Return the private keys of a host that other users may read, so that no SSH client uses them."""
    return [path for path in map(_expand, settings.identity_files) if _is_exposed(path)]


def _is_exposed(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return is_exposed(status.st_mode, owner=status.st_uid, user=os.getuid())


def _agent_keys() -> list[paramiko.AgentKey]:
    if "SSH_AUTH_SOCK" not in os.environ:
        return []
    import paramiko

    try:
        return list(paramiko.Agent().get_keys())
    except (paramiko.SSHException, OSError):
        return []


def hardware_key(identity_files: Sequence[str]) -> str | None:
    """Return why a hardware key (FIDO, ``sk-``) is required, which only OpenSSH supports."""
    for path in map(_expand, identity_files):
        public = path.with_name(path.name + ".pub")
        if path.exists() and _first_word(public).startswith("sk-"):
            return f"{path} is a hardware key"
    if any(key.get_name().startswith("sk-") for key in _agent_keys()):
        return "the agent has a hardware key"
    return None


@remembered
def _words(public: Path) -> list[str]:
    return public.read_text(encoding="utf-8", errors="replace").split()


def _first_word(path: Path) -> str:
    try:
        return _words(path)[0]
    except (OSError, IndexError):
        return ""


def _public_blob(path: Path) -> bytes | None:
    import base64

    try:
        return base64.b64decode(_words(path.with_name(path.name + ".pub"))[1])
    except (OSError, IndexError, ValueError):
        return None


def _expand(name: str) -> Path:
    return Path(name).expanduser()


def check_key_file(node: str, path: Path | None) -> None:
    """Raise ConnectionFailed if a key file of the inventory does not exist."""
    if path is not None and not path.expanduser().exists():
        raise ConnectionFailed(
            f"the key file {path} does not exist",
            node=node,
            remedy="correct ansible_ssh_private_key_file in the inventory",
        )


def refuse_unusable_keys(nodes: Sequence[Node]) -> None:
    """Raise an error if the key files on the controller prevent the login to all nodes.

    If only some nodes have an unusable key, each of them gets its own error when it is connected to.

    Raises:
        InventoryError: A key file of the inventory does not exist.
        UsageError: SSH ignores the key file because other users may read it.
    """
    remote = [node for node in nodes if not node.connection.local]
    files = {_unusable(node) for node in remote}
    if not remote or None in files:
        return
    if any(path.exists() for path in files if path) and _agent_keys():
        return  # the agent's keys may be sufficient
    path = min(path for path in files if path)
    if not path.exists():
        raise InventoryError(
            f"ansible_ssh_private_key_file: the private key {path} does not exist",
            remedy="Correct the path in the inventory, or copy the key there.",
        )
    raise UsageError(
        f"{path}: SSH ignores this private key, because other users may read it (mode "
        f"{path.stat().st_mode & 0o7777:04o}, required: 0600)",
        remedy=f"Restrict it to its owner: chmod 600 {shlex.quote(str(path))}",
    )


def _unusable(node: Node) -> Path | None:
    """Return the key file of a node if it does not exist or SSH ignores it; None if it is usable."""
    file = node.connection.key_file
    path = file.expanduser() if file is not None else None
    if path is None or (path.exists() and (not _is_exposed(path) or node.connection.password is not None)):
        return None
    return path
