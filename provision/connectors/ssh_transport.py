"""An authenticated SSH transport to a host whose key is known; jump hosts are held to the same rule."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.commands.ssh import SshSettings
from provision.connectors import failures, known_hosts
from provision.connectors.ssh_auth import authenticate
from provision.errors import ConnectionFailed
from provision.model import Secret

if TYPE_CHECKING:
    import paramiko

__all__ = ["CONNECT_SECONDS", "open_transport"]

CONNECT_SECONDS = 10.0
_KEEPALIVE_SECONDS = 15
_UNANSWERED_MILLISECONDS = 30_000
_QUIET = logging.NullHandler()

_SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


def open_transport(
    node: str, settings: SshSettings, *, password: Secret | None = None, through: paramiko.Transport | None = None
) -> paramiko.Transport:
    """Connect, check the host key, log in; ConnectionFailed with the reason when any of it fails.

    paramiko's SSHClient is not used, because it knows no wildcards in known_hosts, and prefers only the
    first key type on record.
    """
    import paramiko

    # paramiko logs tracebacks of connections that break; what broke is in our own error. Whoever logs gets them still.
    logging.getLogger("paramiko").addHandler(_QUIET)
    known = known_hosts.read(settings.known_hosts)
    names = known_hosts.host_names(settings.host, settings.port, settings.host_key_alias)
    trusted = known_hosts.keys_for(known, names)
    link = _link(node, settings, through)
    transport = paramiko.Transport(link)
    try:
        transport.banner_timeout = transport.auth_timeout = transport.channel_timeout = CONNECT_SECONDS
        _prefer(transport, trusted)
        _start(node, transport, settings)
        _check_key(node, names[0], transport.get_remote_server_key(), trusted, settings.known_hosts)
        authenticate(node, transport, settings, password)
        transport.set_keepalive(_KEEPALIVE_SECONDS)
    except BaseException:
        transport.close()
        raise
    return transport


def _link(node: str, settings: SshSettings, through: paramiko.Transport | None) -> socket.socket | paramiko.Channel:
    import paramiko

    if through is not None:
        try:
            return through.open_channel(
                "direct-tcpip", (settings.host, settings.port), ("127.0.0.1", 0), timeout=CONNECT_SECONDS
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise ConnectionFailed(
                f"the jump host cannot reach {settings.host} port {settings.port}: {error}",
                node=node,
                remedy="check the address as the jump host sees it, and that its sshd allows forwarding",
            ) from error
    try:
        link = socket.create_connection((settings.host, settings.port), timeout=CONNECT_SECONDS)
    except socket.gaierror as error:
        raise failures.unresolvable(node, settings.host) from error
    except OSError as error:
        raise failures.from_oserror(node, settings.host, settings.port, error) from error
    # A peer that was switched off answers no keepalive; without this, TCP would go on for a quarter of an hour.
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MILLISECONDS)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def _prefer(transport: paramiko.Transport, trusted: Sequence[known_hosts.KnownKey]) -> None:
    """Ask the host for a key of a type that is on record, as OpenSSH does."""
    wanted = [name for key in trusted if not key.marker for name in _SIGNATURES.get(key.type, (key.type,))]
    options = transport.get_security_options()
    offered = list(options.key_types)
    options.key_types = sorted(offered, key=lambda name: (name not in wanted, offered.index(name)))


def _start(node: str, transport: paramiko.Transport, settings: SshSettings) -> None:
    import paramiko

    try:
        transport.start_client(timeout=CONNECT_SECONDS)
    except (paramiko.SSHException, EOFError, OSError) as error:
        if "imeout" in str(error) or isinstance(error, TimeoutError):
            raise failures.no_answer(node, settings.host, settings.port) from error
        raise ConnectionFailed(
            f"{settings.host} port {settings.port} does not speak SSH with us: {error or 'it closed the connection'}",
            node=node,
            remedy="is it an SSH server, and not overloaded (MaxStartups)? Try `ssh -v` by hand",
        ) from error


def _check_key(
    node: str,
    name: str,
    shown: paramiko.PKey,
    trusted: Sequence[known_hosts.KnownKey],
    files: Sequence[str],
) -> None:
    blob = shown.asbytes()
    label = f"{shown.get_name()} {known_hosts.fingerprint(blob)}"
    if any(key.blob == blob and key.marker == "@revoked" for key in trusted):
        raise failures.changed_key(node, name, shown=f"{label}, which is marked as revoked", known=trusted)
    plain = [key for key in trusted if not key.marker]
    if any(key.blob == blob for key in plain):
        return
    if plain:
        raise failures.changed_key(node, name, shown=label, known=plain)
    raise failures.unknown_key(node, name, files, key_type=shown.get_name(), shown=known_hosts.fingerprint(blob))
