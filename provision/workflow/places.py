"""Where this machine keeps what it knows of an inventory: locks, logs, history."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from provision.kept_files import inventory_place
from provision.model import Cluster

__all__ = ["identity", "log_folder", "state_folder"]


def state_folder() -> Path:
    """Return the folder of all that is kept between commands."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state", "provision")


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
