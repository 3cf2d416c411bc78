"""Where this machine keeps what it knows of an inventory: locks, logs, history."""

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
    """Return a name for what is applied to: the same for an inventory's folder and for its only hosts file."""
    if all(node.connection.local for node in cluster.nodes):
        return "this-machine"
    place = inventory_place(cluster.inventory)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", cluster.name).lstrip(".")
    return f"{name}-{hashlib.sha256(str(place).encode()).hexdigest()[:8]}"


def log_folder(cluster: Cluster) -> Path:
    """Return where the logs of applies of this inventory are kept, newest 20; ``support-bundle`` takes them along."""
    return state_folder() / "logs" / identity(cluster)


@contextmanager
def alone(cluster: Cluster, purpose: str) -> Iterator[list[str]]:
    """Keep a second change of the same inventory out: the two would undo each other's steps.

    Where no lock can be written (a full disk), that is a warning.
    """
    warnings: list[str] = []
    path = state_folder() / "locks" / f"{identity(cluster)}.lock"
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            stack.enter_context(held(path, str(cluster.inventory), purpose))
        except OSError as error:
            warnings.append(f"no lock keeps others from changing the nodes at the same time: {path}: {error.strerror}")
        yield warnings
