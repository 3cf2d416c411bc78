"""Test whether a node's SSH port accepts connections, within a second or two."""

from __future__ import annotations

import socket

from provision.model import Node

_SSH = 22


def takes_connections(node: Node, seconds: float) -> bool:
    """Return whether a node's address accepts TCP connections within `seconds`.

    Jump hosts and SSH configuration files are not used. A node behind them counts as unreachable.
    """
    if node.connection.local:
        return True
    try:
        with socket.create_connection((node.connection.host, node.connection.port or _SSH), timeout=seconds):
            return True
    except OSError:
        return False
