"""Descendants of this process: list and kill them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Return the descendants of `pid` from ``/proc``, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                state, parent = stat.rpartition(")")[2].split()[:2]  # proc(5): pid (name) state ppid ...
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry.name))
    processes: list[int] = []
    layer = children.get(pid, [])
    while layer:
        processes += layer
        layer = [child for parent in layer for child in children.get(parent, [])]
    return processes


def end_descendants() -> None:
    """Kill all descendants of this process, including those that lead a session of their own.

    Ansible's workers do. A signal to the process group of ansible-playbook does not end them and their ssh.
    """
    for pid in descendants(os.getpid()):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
