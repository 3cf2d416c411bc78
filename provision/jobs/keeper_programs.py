"""What goes to a node with the start of a job: the keeper's program, and what it imports."""

from __future__ import annotations

from functools import cache

from provision.jobs.session import FILES

__all__ = ["keeper_programs"]

_NAMES = (
    "node_jobs.py",
    "keeper.py",
    "keeper_channel.py",
    "keeper_containers.py",
    "keeper_endings.py",
    "keeper_network.py",
    "keeper_output.py",
)


@cache
def keeper_programs() -> dict[str, str]:
    """Return the files of the keeper by name: ``programs`` of the request ``start``."""
    return {name: (FILES / name).read_text(encoding="utf-8") for name in _NAMES}
