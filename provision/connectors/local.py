"""The controller as a node (``ansible_connection: local``): the same interface without SSH."""

from __future__ import annotations

import os

from provision.connectors.limits import OUTPUT_LIMIT
from provision.connectors.shell import ShellConnector
from provision.connectors.subprocesses import LocalProcess
from provision.locks import user
from provision.model import Node


class LocalConnector(ShellConnector[LocalProcess]):
    """Runs commands on the controller."""

    reason = "the inventory says ansible_connection: local"

    def __init__(self, node: Node) -> None:
        super().__init__(node, user(), root=os.geteuid() == 0)

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def _process(self, command: str, limit: int | None = OUTPUT_LIMIT) -> LocalProcess:
        return LocalProcess(self.name, ["sh", "-c", command], limit=limit)
