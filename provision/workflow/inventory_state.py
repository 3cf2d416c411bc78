"""Files on the controller about an inventory: its identity, its lock and its logs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from provision.cache_files import inventory_place
from provision.local_files import state_folder
from provision.locks import held
from provision.model import Cluster


def identity(cluster: Cluster) -> str:
    """Return the name of an inventory for files on the controller, the same for its folder and its only hosts file."""
    if all(node.connection.local for node in cluster.nodes):
        return "this-machine"
    place = inventory_place(cluster.inventory)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", cluster.name).lstrip(".")
    return f"{name}-{hashlib.sha256(str(place).encode()).hexdigest()[:8]}"


def log_folder(cluster: Cluster) -> Path:
    """Return the folder with the newest 20 logs of applies of this inventory, which ``support-bundle`` contains."""
    return state_folder() / "logs" / identity(cluster)


@contextmanager
def inventory_lock(cluster: Cluster, purpose: str) -> Iterator[list[str]]:
    """Lock an inventory against a second change, because the two would undo each other's steps; yield warnings.

    If the lock cannot be written (for example because the disk is full), that is a warning.

    Raises:
        LockedError: Another process changes the inventory.
    """
    warnings: list[str] = []
    path = state_folder() / "locks" / f"{identity(cluster)}.lock"
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            stack.enter_context(held(path, str(cluster.inventory), purpose))
        except OSError as error:
            warnings.append(f"the inventory is not locked against other changes: {path}: {error.strerror}")
        yield warnings
