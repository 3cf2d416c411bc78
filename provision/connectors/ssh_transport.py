"""Authenticated SSH transports to hosts with known keys, including jump hosts."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provision.commands.ssh import SshSettings
from provision.connectors import failures, known_hosts, ssh_algorithms
from provision.connectors.ssh_auth import authenticate
from provision.documents import printable_line
from provision.errors import ConnectionFailed, ProvisionError
from provision.model import Secret

if TYPE_CHECKING:
    import paramiko

CONNECT_SECONDS = 10.0
_KNOCK_SECONDS = 20.0
"""Seconds of retries for a node that closes connections before its banner, because of too many logins (MaxStartups)."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 4.0
_IDLE_SECONDS = 2.0
"""Poll interval for paramiko's waits; its default of 0.1 s uses a whole core with a thousand waiting connections."""
_KEEPALIVE_SECONDS = 15
_UNANSWERED_MILLISECONDS = 30_000
_QUIET = logging.NullHandler()

_SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


@dataclass(frozen=True)
class Hop:
    """A jump host or the node itself."""

    settings: SshSettings
    trusted: Sequence[known_hosts.KnownKey]
    """Entries of known_hosts for the host."""


class _DroppedError(Exception):
    """The node accepted the connection and closed it before its banner."""

    def __init__(self, failure: ConnectionFailed) -> None:
        super().__init__(str(failure))
        self.failure = failure


def open_transport(
    node: str, hop: Hop, *, password: Secret | None = None, through: paramiko.Transport | None = None
) -> paramiko.Transport:
    """Connect, verify the host key and log in; ConnectionFailed with the reason if a step fails.

    paramiko's SSHClient is not used, because it does not support wildcards in known_hosts and prefers only the first
    recorded key type. A node that closes the connection at once is tried again, with growing pauses.
    """
    end, pause = time.monotonic() + _KNOCK_SECONDS, _FIRST_PAUSE
    while True:
        try:
            return _open(node, hop, password, through)
        except _DroppedError as dropped:
            rest = pause * random.uniform(0.5, 1.5)  # noqa: S311 # nosec B311 # random, to spread retries
            if time.monotonic() + rest > end:
                raise dropped.failure from dropped.failure.__cause__
            time.sleep(rest)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _open(node: str, hop: Hop, password: Secret | None, through: paramiko.Transport | None) -> paramiko.Transport:
    settings = hop.settings
    link = _link(node, settings, through)  # before the import of paramiko, so that the node can start

    import paramiko

    from provision.connectors.ssh_packets import Packets

    # paramiko logs tracebacks of lost connections, which our own error describes. Configured logging still gets them.
    logging.getLogger("paramiko").addHandler(_QUIET)
    transport = paramiko.Transport(link, packetizer_class=Packets, disabled_algorithms=ssh_algorithms.DISABLED)
    try:
        link.settimeout(_IDLE_SECONDS)
        transport.banner_timeout = transport.auth_timeout = transport.channel_timeout = CONNECT_SECONDS
        ssh_algorithms.restrict(transport)
        _prefer(transport, hop.trusted)
        _start(node, transport, settings)
        _check_key(node, transport.get_remote_server_key(), hop)
        authenticate(node, transport, settings, password)
        transport.set_keepalive(_KEEPALIVE_SECONDS)
    except BaseException as error:
        close_transport(transport)
        if isinstance(error, Exception) and not isinstance(error, ProvisionError | _DroppedError):
            raise _no_ssh(node, settings, error) from error
        raise
    return transport


def close_transport(transport: paramiko.Transport) -> None:
    """Close a connection and wake up its thread, which waits for the node."""
    with suppress(*lost()):  # through a jump host, the link is a channel of another connection
        transport.sock.shutdown(socket.SHUT_RDWR)
    with suppress(*lost()):
        transport.close()


def lost() -> tuple[type[Exception], ...]:
    """Return what paramiko raises if the connection is lost, or if the node does not end a key exchange."""
    import paramiko

    return OSError, EOFError, paramiko.SSHException


def _link(node: str, settings: SshSettings, through: paramiko.Transport | None) -> socket.socket | paramiko.Channel:
    if through is not None:
        import paramiko

        try:
            return through.open_channel(
                "direct-tcpip", (settings.host, settings.port), ("127.0.0.1", 0), timeout=CONNECT_SECONDS
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise ConnectionFailed(
                f"the jump host cannot reach {settings.host} port {settings.port}: {error}",
                node=node,
                remedy="check the address in the jump host's network, and that its sshd allows forwarding",
            ) from error
    try:
        link = socket.create_connection((settings.host, settings.port), timeout=CONNECT_SECONDS)
    except socket.gaierror as error:
        raise failures.unresolvable(node, settings.host) from error
    except OSError as error:
        raise failures.from_oserror(node, settings.host, settings.port, error) from error
    # A peer that was powered off does not answer keepalives; by default TCP would wait for a quarter of an hour.
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MILLISECONDS)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def _prefer(transport: paramiko.Transport, trusted: Sequence[known_hosts.KnownKey]) -> None:
    """Prefer the key types in known_hosts, as OpenSSH does."""
    wanted = [name for key in trusted if not key.marker for name in _SIGNATURES.get(key.type, (key.type,))]
    options = transport.get_security_options()
    offered = list(options.key_types)
    options.key_types = sorted(offered, key=lambda name: (name not in wanted, offered.index(name)))


def _start(node: str, transport: paramiko.Transport, settings: SshSettings) -> None:
    import paramiko
    from paramiko.ssh_exception import IncompatiblePeer

    done = threading.Event()
    error: Exception | None = None
    try:
        transport.start_client(event=done)
        in_time = done.wait(CONNECT_SECONDS)
        if not transport.is_active():
            error = transport.get_exception() or paramiko.SSHException("it closed the connection")
    except (paramiko.SSHException, EOFError, OSError) as problem:
        error = problem
    if error is None:
        if not in_time:
            raise failures.no_answer(node, settings.host, settings.port)
        return
    if isinstance(error, TimeoutError):
        raise failures.no_answer(node, settings.host, settings.port) from error
    if isinstance(error, IncompatiblePeer):
        raise failures.outdated_algorithms(node, settings.host, settings.port, printable_line(str(error))) from error
    failure = _no_ssh(node, settings, error)  # any type: paramiko re-raises errors of its thread about data of the host
    failure.__cause__ = error
    if not transport.remote_version:
        raise _DroppedError(failure) from error
    raise failure from error


def _no_ssh(node: str, settings: SshSettings, error: Exception) -> ConnectionFailed:
    return ConnectionFailed(
        f"{settings.host} port {settings.port} failed the SSH handshake: "
        f"{printable_line(str(error)) or 'it closed the connection'}",
        node=node,
        remedy="check that it is an SSH server, is not overloaded (MaxStartups), and can start processes. Run"
        " `ssh -v` to see the details, and check its console",
    )


def _check_key(node: str, shown: paramiko.PKey, hop: Hop) -> None:
    blob, settings = shown.asbytes(), hop.settings
    name = known_hosts.host_names(settings.host, settings.port, settings.host_key_alias)[0]
    label = f"{shown.get_name()} {known_hosts.fingerprint(blob)}"
    if any(key.blob == blob and key.marker == "@revoked" for key in hop.trusted):
        raise failures.changed_key(node, name, shown=f"{label}, which is marked as revoked", known=hop.trusted)
    plain = [key for key in hop.trusted if not key.marker]
    if any(key.blob == blob for key in plain):
        return
    files = settings.known_hosts
    if plain:
        others = known_hosts.hosts_with(files, blob)
        raise failures.changed_key(node, name, shown=label, known=plain, others=others)
    raise failures.unknown_key(node, name, files, key_type=shown.get_name(), shown=known_hosts.fingerprint(blob))
