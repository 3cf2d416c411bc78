"""Choosing the way to a node, and doing one thing on all nodes at once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from provision.commands.ssh import SshSettings, openssh_reason, parse_settings, settings_argv
from provision.connectors import known_hosts
from provision.connectors.base import Connector
from provision.connectors.local import LocalConnector
from provision.connectors.openssh import OpenSshConnector
from provision.errors import ConnectionFailed, NodeError, ProvisionError
from provision.model import Connection, Node
from provision.threads import outcomes

__all__ = ["connect", "each"]

T = TypeVar("T")


def connect(node: Node) -> Connector:
    """Connect to `node`; the result's ``reason`` says why this transport and no other."""
    if node.connection.local:
        return LocalConnector(node)
    from provision.connectors.ssh import SshConnector
    from provision.connectors.ssh_auth import check_key_file, hardware_key

    check_key_file(node.name, node.connection.key_file)
    settings = _settings(node.name, node.connection)
    jumps = tuple(_jump_settings(node, jump) for jump in settings.jumps)
    reason = next(filter(None, (_openssh_reason(node.connection, hop) for hop in (settings, *jumps))), None)
    reason = reason or hardware_key(settings)
    return OpenSshConnector(node, settings, reason) if reason else SshConnector(node, settings, jumps)


def each(
    nodes: Sequence[Node], function: Callable[[Connector], T], *, limit: int = 64
) -> dict[str, T | ProvisionError]:
    """Run `function` on all nodes in parallel; the results are in the order of `nodes`.

    What goes wrong on one node is that node's value, and stops no other.
    """
    results: dict[str, T | ProvisionError] = {}
    for node, outcome in zip(nodes, outcomes(lambda node: _one(node, function), nodes, limit=limit), strict=True):
        if isinstance(outcome, Exception) and not isinstance(outcome, ProvisionError):
            raise outcome
        results[node.name] = outcome
    return results


def _one(node: Node, function: Callable[[Connector], T]) -> T | ProvisionError:
    try:
        connector = connect(node)
        try:
            return function(connector)
        finally:
            connector.close()
    except ProvisionError as error:
        error.node = error.node or node.name
        return error
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return NodeError(f"this machine could not do its part: {what}", node=node.name)


def _settings(node: str, connection: Connection) -> SshSettings:
    """Ask ``ssh -G``: it alone reads ssh_config with all of Include, Match and tokens."""
    try:
        done = subprocess.run(
            settings_argv(connection), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise ConnectionFailed(
            f"the ssh program cannot be run here: {error.strerror}", node=node, remedy="install openssh-client"
        ) from error
    if done.returncode != 0:
        raise ConnectionFailed(
            f"ssh does not accept its configuration for {connection.host}: {done.stderr.strip()}",
            node=node,
            remedy="correct ssh_config, or ansible_ssh_common_args in the inventory",
        )
    return parse_settings(done.stdout)


def _jump_settings(node: Node, jump: str) -> SshSettings:
    user, _, place = jump.rpartition("@")
    host, port = _host_and_port(place)
    files = [
        word for flag, word in zip(node.connection.ssh_args, node.connection.ssh_args[1:], strict=False) if flag == "-F"
    ]
    common = ("-F", files[0]) if files else ()
    # As with OpenSSH's own ProxyJump, what is said of the node (its known_hosts, its key) is not said of the jump host.
    return _settings(node.name, Connection(host, port=port, user=user or None, ssh_args=common))


def _host_and_port(place: str) -> tuple[str, int | None]:
    if place.startswith("["):
        host, _, rest = place[1:].partition("]")
        return host, int(rest[1:]) if rest.startswith(":") else None
    host, colon, port = place.partition(":")
    return host, int(port) if colon and port.isdigit() else None


def _openssh_reason(connection: Connection, settings: SshSettings) -> str | None:
    reason = openssh_reason(connection, settings, has_ticket=_has_kerberos_ticket())
    if reason:
        return reason
    names = known_hosts.host_names(settings.host, settings.port, settings.host_key_alias)
    for key in known_hosts.keys_for(known_hosts.read(settings.known_hosts), names):
        if key.marker == "@cert-authority":
            return f"the host is known by a certificate authority ({key.where})"
    return None


def _has_kerberos_ticket() -> bool:
    return "KRB5CCNAME" in os.environ or Path(f"/tmp/krb5cc_{os.getuid()}").exists()  # noqa: S108 - Kerberos' own name
