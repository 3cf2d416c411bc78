"""Ways to reach a node. ``connect`` chooses one; ``each`` works on all nodes in parallel."""

from provision.connectors.base import Connector, RemoteProcess
from provision.connectors.pool import connect, connections, each
from provision.connectors.ssh_auth import refuse_unusable_keys

__all__ = ["Connector", "RemoteProcess", "connect", "connections", "each", "refuse_unusable_keys"]
