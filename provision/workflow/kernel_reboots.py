"""The nodes that an apply reboots, recorded on the controller, so that the next apply waits for them.

The record of the upgrade itself is on the node. This one only keeps an apply that follows a killed one from reporting a
node as unreachable that is about to come back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from provision.documents import decode
from provision.documents.state import RebootsRecord
from provision.errors import InvalidDocument, ProvisionError
from provision.local_files import state_folder, write_private
from provision.model import Cluster, Node
from provision.workflow.inventory_state import identity
from provision.workflow.kernel_requests import call

_PAUSE_SECONDS = 2.0
_AT_ONCE = 64
STOP_SECONDS = 180.0
"""How long a node may need to stop."""
BOOT_SECONDS = 900.0
"""How long firmware and boot loader of a large server may need."""


class Reboots:
    """Node -> until when an apply may wait for it, in seconds since the epoch. Changes require the inventory's lock."""

    def __init__(self, cluster: Cluster) -> None:
        self._path = state_folder() / "reboots" / f"{identity(cluster)}.json"
        self.nodes: dict[str, float] = {}
        with suppress(OSError, InvalidDocument):
            record = decode(self._path.read_bytes(), RebootsRecord, node="", what="the record")
            self.nodes = dict(record.nodes)

    def add(self, seconds: Mapping[str, float]) -> None:
        """Record nodes before they reboot; each may be away for so many seconds."""
        now = time.time()
        self._write(self.nodes | {name: now + limit for name, limit in seconds.items()})

    def forget(self, names: Iterable[str]) -> None:
        """Remove nodes that have come back."""
        gone = set(names) & self.nodes.keys()
        if gone:
            self._write({name: until for name, until in self.nodes.items() if name not in gone})

    def _write(self, nodes: dict[str, float]) -> None:
        """Replace the record; without it, only the wait of a later apply is missing."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(self._path, json.dumps({"nodes": nodes}), durable=True)
        self.nodes = nodes


def await_reboots(cluster: Cluster, nodes: Sequence[Node], on_wait: Callable[[Sequence[str]], None]) -> None:
    """Wait for the nodes that an interrupted apply has rebooted; `on_wait` gets their names if there are any."""
    from provision.threads import outcomes

    until = Reboots(cluster).nodes
    due = [node for node in nodes if until.get(node.name, 0.0) > time.time()]
    if due:
        on_wait([node.name for node in due])
        outcomes(lambda node: _await(node, until[node.name]), due, limit=_AT_ONCE)


def _await(node: Node, until: float) -> None:
    """Wait until a node answers after its reboot; one that still answers is about to stop."""
    stop = time.time() + STOP_SECONDS
    while time.time() < until:
        with suppress(ProvisionError):
            if call(node, "status").phase != "rebooting" or time.time() >= stop:
                return
        time.sleep(_PAUSE_SECONDS)
