"""Select the connector of a node, and run functions on all nodes in parallel."""

from __future__ import annotations

import logging
import os
import threading
import time
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
from provision.threads import ThreadRateLimiter, outcomes

T = TypeVar("T")

_LOG = logging.getLogger("provision.connectors")
_PROGRAMS = 64
"""Maximum number of parallel connections with the ssh program, each of which needs two processes and a folder."""
_FILES_OF_A_NODE = 4
"""Open files per node: its socket, the pipe for output events, the agent."""


def connect(node: Node) -> Connector:
    """Connect to `node`. The ``reason`` of the result contains why this transport was selected."""
    connect_node, _ = _ConnectionFactory().to(node)
    return _logged_in(node, connect_node)


def each(
    nodes: Sequence[Node],
    function: Callable[[Connector], T],
    *,
    limit: int = 1024,
    patience: float | None = None,
    meanwhile: Callable[[], None] | None = None,
    answered: float = 0.0,
) -> dict[str, T | ProvisionError]:
    """Run `function` on all nodes in parallel and return results in the order of `nodes`.

    An error of one node is its result and does not affect other nodes. The number of parallel nodes depends on `limit`,
    the limit of open files and the load of the controller, so that a busy controller does not cause timeouts. Fewer
    connections with the ssh program run in parallel because each needs processes. `patience` is the number of seconds
    beyond twice the time of the slowest answer, or beyond twice `answered` (seconds of an earlier answer; 0 without
    one), after which a node counts as unreachable. `meanwhile` is called when the first calls have started.
    """
    factory, programs = _ConnectionFactory(), threading.BoundedSemaphore(_PROGRAMS)

    def while_they_work() -> None:
        if any(not node.connection.local for node in nodes):
            import paramiko  # noqa: F401 - the connecting threads wait for this import
        if meanwhile is not None:
            meanwhile()

    results: dict[str, T | ProvisionError] = {}
    with room_for(min(limit, len(nodes)), _FILES_OF_A_NODE) as at_once:
        all_outcomes = outcomes(
            lambda node: _one(node, function, factory, programs),
            nodes,
            limit=at_once,
            pace=ThreadRateLimiter(),
            patience=patience,
            meanwhile=while_they_work,
            answered=answered,
        )
    for node, outcome in zip(nodes, all_outcomes, strict=True):
        if isinstance(outcome, TimeoutError):
            results[node.name] = NodeUnreachable("no answer in time (other nodes have answered)", node=node.name)
            continue
        if isinstance(outcome, Exception) and not isinstance(outcome, ProvisionError):
            raise outcome
        results[node.name] = outcome
    return results


@contextmanager
def connections(nodes: Sequence[Node]) -> Iterator[dict[str, Connector | ProvisionError]]:
    """Connect to all nodes in parallel and keep the connections open until the end of the context.

    An error of one node is its value. The caller must not pass more nodes than may have open connections.
    """
    factory = _ConnectionFactory()
    with room_for(len(nodes), _FILES_OF_A_NODE) as at_once:
        outcome = outcomes(lambda node: _connected(node, factory), nodes, limit=at_once, pace=ThreadRateLimiter())
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


def _logged_in(node: Node, connect_node: Callable[[], Connector]) -> Connector:
    begun = time.monotonic()
    try:
        connector = connect_node()
    except ProvisionError:
        _LOG.debug("%s: connection: failed after %.2f s", node.name, time.monotonic() - begun)
        raise
    _LOG.debug("%s: connection: ready after %.2f s", node.name, time.monotonic() - begun)
    return connector


def _connected(node: Node, factory: _ConnectionFactory) -> Connector | ProvisionError:
    try:
        connect_node, _ = factory.to(node)
        return _logged_in(node, connect_node)
    except ProvisionError as error:
        error.node = error.node or node.name
        return error
    except OSError as error:
        return _local_error(node, error)


def _one(
    node: Node, function: Callable[[Connector], T], factory: _ConnectionFactory, programs: threading.BoundedSemaphore
) -> T | ProvisionError:
    try:
        connect_node, program = factory.to(node)
        with programs if program else nullcontext():
            connector = _logged_in(node, connect_node)
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
    return NodeError(f"local error on the controller: {what}", node=node.name)


class _ConnectionFactory:
    """Connection factory for one command. It reads the operator's SSH files once for all nodes."""

    def __init__(self) -> None:
        self._config = SshConfig()
        self._has_ticket = lru_cache(maxsize=1)(_has_kerberos_ticket)
        self._hardware_key_of, self._asking = lru_cache(maxsize=64)(hardware_key), threading.Lock()

    def to(self, node: Node) -> tuple[Callable[[], Connector], bool]:
        """Return the function that connects to `node` with the right transport, and whether it uses the ssh program."""
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
        # As in OpenSSH's ProxyJump, options of the node (known_hosts, key) do not apply to the jump host.
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
    return "KRB5CCNAME" in os.environ or Path(f"/tmp/krb5cc_{os.getuid()}").exists()  # noqa: S108 # nosec B108 # Kerberos' path
