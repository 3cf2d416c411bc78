"""Choosing the way to a node, and doing one thing on all nodes at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from provision.commands.ssh import SshSettings, openssh_reason
from provision.connectors import known_hosts
from provision.connectors.base import Connector
from provision.connectors.local import LocalConnector
from provision.connectors.openssh import OpenSshConnector
from provision.connectors.room import room_for
from provision.connectors.ssh import SshConnector
from provision.connectors.ssh_auth import check_key_file, hardware_key
from provision.connectors.ssh_config import SshConfig
from provision.connectors.ssh_transport import Hop
from provision.errors import NodeError, NodeUnreachable, ProvisionError
from provision.model import Connection, Node
from provision.threads import Pace, outcomes

__all__ = ["connect", "connections", "each"]

T = TypeVar("T")

_PROGRAMS = 64
"""Nodes at once that the ssh program reaches: two of its processes each, and a folder."""
_FILES_OF_A_NODE = 4
"""Open at once for a node: its socket, the pipe that tells of output, the agent."""


def connect(node: Node) -> Connector:
    """Connect to `node`; the result's ``reason`` says why this transport and no other."""
    way, _ = _Ways().to(node)
    return way()


def each(
    nodes: Sequence[Node],
    function: Callable[[Connector], T],
    *,
    limit: int = 1024,
    patience: float | None = None,
    meanwhile: Callable[[], None] | None = None,
    answered: float = 0.0,
) -> dict[str, T | ProvisionError]:
    """Run `function` on all nodes in parallel; the results are in the order of `nodes`.

    What goes wrong on one node is that node's value, and stops no other. All nodes are worked on at once, as far as
    this machine lets us: `limit`, its limit of open files, and no faster than it keeps up, so that no node is called
    silent because we were late. Nodes that the ssh program reaches are fewer at once, as each costs a process. With
    `patience` a node is given up that takes so many seconds longer than twice the time of the slowest that answered,
    or than twice what one took that was asked before (`answered`, in seconds; 0 for none).
    `meanwhile` is what the caller can do by itself while nodes are at work; it is called when the first have begun.
    """
    ways, programs = _Ways(), threading.BoundedSemaphore(_PROGRAMS)

    def while_they_work() -> None:
        if any(not node.connection.local for node in nodes):
            import paramiko  # noqa: F401 - the threads that connect wait for this import
        if meanwhile is not None:
            meanwhile()

    results: dict[str, T | ProvisionError] = {}
    with room_for(min(limit, len(nodes)), _FILES_OF_A_NODE) as at_once:
        found = outcomes(
            lambda node: _one(node, function, ways, programs),
            nodes,
            limit=at_once,
            pace=Pace(),
            patience=patience,
            meanwhile=while_they_work,
            answered=answered,
        )
    for node, outcome in zip(nodes, found, strict=True):
        if isinstance(outcome, TimeoutError):
            results[node.name] = NodeUnreachable("no answer in time (other nodes have answered)", node=node.name)
            continue
        if isinstance(outcome, Exception) and not isinstance(outcome, ProvisionError):
            raise outcome
        results[node.name] = outcome
    return results


@contextmanager
def connections(nodes: Sequence[Node]) -> Iterator[dict[str, Connector | ProvisionError]]:
    """Connect to all nodes in parallel and keep the connections open until the caller leaves the context.

    What goes wrong on one node is that node's value. The caller passes no more nodes than may have open connections.
    """
    ways = _Ways()
    with room_for(len(nodes), _FILES_OF_A_NODE) as at_once:
        outcome = outcomes(lambda node: _connected(node, ways), nodes, limit=at_once, pace=Pace())
        opened: dict[str, Connector | ProvisionError] = {}
        try:
            for node, one in zip(nodes, outcome, strict=True):
                if isinstance(one, Exception) and not isinstance(one, ProvisionError):
                    raise one
                opened[node.name] = one
            yield opened
        finally:
            for one in outcome:
                if not isinstance(one, Exception):
                    one.close()


def _connected(node: Node, ways: _Ways) -> Connector | ProvisionError:
    try:
        way, _ = ways.to(node)
        return way()
    except ProvisionError as error:
        error.node = error.node or node.name
        return error
    except OSError as error:
        return _local_error(node, error)


def _one(
    node: Node, function: Callable[[Connector], T], ways: _Ways, programs: threading.BoundedSemaphore
) -> T | ProvisionError:
    try:
        way, program = ways.to(node)
        with programs if program else nullcontext():
            connector = way()
            try:
                return function(connector)
            finally:
                connector.close()
    except ProvisionError as error:
        error.node = error.node or node.name
        return error
    except OSError as error:
        return _local_error(node, error)


def _local_error(node: Node, error: OSError) -> NodeError:
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return NodeError(f"this machine could not do its part: {what}", node=node.name)


class _Ways:
    """The ways to the nodes of one look: what is the same for many of them is asked of the operator's files once."""

    def __init__(self) -> None:
        self._config = SshConfig()
        self._has_ticket = lru_cache(maxsize=1)(_has_kerberos_ticket)
        self._hardware_key_of, self._asking = lru_cache(maxsize=64)(hardware_key), threading.Lock()

    def to(self, node: Node) -> tuple[Callable[[], Connector], bool]:
        """Return what makes the connection to `node`, the transport that can; and whether that is the ssh program."""
        if node.connection.local:
            return partial(LocalConnector, node), False
        check_key_file(node.name, node.connection.key_file)
        settings = self._config.settings(node.name, node.connection)
        jumps = (self._jump_settings(node, jump) for jump in settings.jumps)
        hops = tuple(Hop(hop, _trusted(hop)) for hop in (*jumps, settings))
        asked = (self._openssh_reason(node.connection, hop) for hop in (hops[-1], *hops[:-1]))
        reason = next(filter(None, asked), None)
        with self._asking:
            reason = reason or self._hardware_key_of(settings.identity_files)
        if reason:
            return partial(OpenSshConnector, node, settings, reason), True
        return partial(SshConnector, node, hops), False

    def _jump_settings(self, node: Node, jump: str) -> SshSettings:
        user, _, place = jump.rpartition("@")
        host, port = _host_and_port(place)
        arguments = node.connection.ssh_args
        files = [word for flag, word in pairwise(arguments) if flag == "-F"]
        common = ("-F", files[0]) if files else ()
        # As with OpenSSH's own ProxyJump, what is said of the node (known_hosts, key) is not said of the jump host.
        return self._config.settings(node.name, Connection(host, port=port, user=user or None, ssh_args=common))

    def _openssh_reason(self, connection: Connection, hop: Hop) -> str | None:
        reason = openssh_reason(connection, hop.settings, has_ticket=self._has_ticket())
        if reason:
            return reason
        authority = next((key for key in hop.trusted if key.marker == "@cert-authority"), None)
        return f"the host is known by a certificate authority ({authority.where})" if authority else None


def _trusted(settings: SshSettings) -> list[known_hosts.KnownKey]:
    names = known_hosts.host_names(settings.host, settings.port, settings.host_key_alias)
    return known_hosts.trusted(settings.known_hosts, names)


def _host_and_port(place: str) -> tuple[str, int | None]:
    if place.startswith("["):
        host, _, rest = place[1:].partition("]")
        return host, int(rest[1:]) if rest.startswith(":") else None
    host, colon, port = place.partition(":")
    return host, int(port) if colon and port.isdigit() else None


def _has_kerberos_ticket() -> bool:
    return "KRB5CCNAME" in os.environ or Path(f"/tmp/krb5cc_{os.getuid()}").exists()  # noqa: S108 # nosec B108 # Kerberos' own name
