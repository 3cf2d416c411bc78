"""Jobs: started over the containers of many nodes, watched, and ended without a trace."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from provision.jobs.request import JobRequest, new_job_id
    from provision.jobs.running import Plan, dry_run, prepare, prepare_offline, run
    from provision.jobs.seating import placed_entries, with_uuids
    from provision.jobs.syncing import sync

__all__ = [
    "JobRequest",
    "Plan",
    "dry_run",
    "new_job_id",
    "placed_entries",
    "prepare",
    "prepare_offline",
    "run",
    "sync",
    "with_uuids",
]

_PARTS = {
    "request": ("JobRequest", "new_job_id"),
    "running": ("Plan", "dry_run", "prepare", "prepare_offline", "run"),
    "seating": ("placed_entries", "with_uuids"),
    "syncing": ("sync",),
}
"""Module -> what is taken from it, when it is asked for: a command that needs one part does not wait for all."""


def __getattr__(name: str) -> Any:
    for part, names in _PARTS.items():
        if name in names:
            found = globals()[name] = getattr(import_module(f"{__name__}.{part}"), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
