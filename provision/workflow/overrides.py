"""Who let a node take jobs that should take none: a line for each time, beside the logs of applies."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from provision.locks import user
from provision.workflow.inventory_state import log_folder

if TYPE_CHECKING:
    from provision.model import Cluster

_NAME = "degraded.log"
_MOST_BYTES = 1_000_000
"""A full log is kept beside the new one, and the one before that goes."""


def note_degraded(cluster: Cluster, purpose: str, nodes: Sequence[tuple[str, str]]) -> str:
    """Write down that `nodes` (name and reason) were taken all the same, when, by whom and for what.

    Returns why that could not be written, empty when it could; a full disk stops no job.
    """
    path = log_folder(cluster) / _NAME
    entry = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "user": user(),
        "purpose": purpose,
        "nodes": dict(nodes),
    }
    try:
        _append(path, json.dumps(entry, ensure_ascii=False) + "\n")
    except OSError as error:
        return f"that degraded nodes were taken could not be written to {path}: {error.strerror}"
    return ""


def _append(path: Path, line: str) -> None:
    """Write the line at once, so that two commands do not mix theirs; for us alone."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists() and path.stat().st_size > _MOST_BYTES:
        path.replace(path.with_suffix(".old.log"))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, line.encode(errors="replace"))
    finally:
        os.close(descriptor)
