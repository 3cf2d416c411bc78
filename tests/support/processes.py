"""Processes of a test, found by a variable that they inherited."""

from __future__ import annotations

from pathlib import Path

__all__ = ["marked"]


def marked(mark: str) -> list[int]:
    """Return the pids of living processes whose environment holds `mark`, as ``NAME=VALUE``; zombies have none."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids
