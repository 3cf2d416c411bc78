"""Where this machine keeps what it knows of an inventory: locks, logs, history."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from provision.local_files import state_folder
from provision.model import Cluster

__all__ = ["identity", "log_folder"]


def identity(cluster: Cluster) -> str:
    """Return a name for what is applied to: the same for an inventory's folder and for its only hosts file."""
    if all(node.connection.local for node in cluster.nodes):
        return "this-machine"
    place = cluster.inventory.resolve()
    if place.is_file() and place.stem in {"hosts", "inventory"}:
        place = place.parent
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", cluster.name).lstrip(".")
    return f"{name}-{hashlib.sha256(str(place).encode()).hexdigest()[:8]}"


def log_folder(cluster: Cluster) -> Path:
    """Return where the logs of applies of this inventory are kept, newest 20; ``support-bundle`` takes them along."""
    return state_folder() / "logs" / identity(cluster)
