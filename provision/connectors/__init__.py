"""Connections to nodes: ``connect`` selects the transport, ``each`` runs a function on all nodes in parallel."""

from provision.connectors.base import Connector, RemoteProcess
from provision.connectors.pool import connect, connections, each
from provision.connectors.ssh_auth import refuse_unusable_keys

__all__ = ["Connector", "RemoteProcess", "connect", "connections", "each", "refuse_unusable_keys"]
