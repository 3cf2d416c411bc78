"""Whether a node's SSH port takes connections, found out in a second or two."""

from __future__ import annotations

import socket

from provision.model import Node

__all__ = ["takes_connections"]

_SSH = 22


def takes_connections(node: Node, seconds: float) -> bool:
    """Return whether something takes TCP connections at a node's address within `seconds`.

    Jump hosts and SSH configuration files are not used: a node behind them is said not to take any.
    """
    if node.connection.local:
        return True
    try:
        with socket.create_connection((node.connection.host, node.connection.port or _SSH), timeout=seconds):
            return True
    except OSError:
        return False
