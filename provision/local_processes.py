"""Processes of this machine that this process started, and their end."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

__all__ = ["descendants", "end_descendants"]


def descendants(pid: int) -> list[int]:
    """Return the processes that come from `pid`, nearest first; read from ``/proc``."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                state, parent = stat.rpartition(")")[2].split()[:2]  # proc(5): pid (name) state ppid ...
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry.name))
    found: list[int] = []
    layer = children.get(pid, [])
    while layer:
        found += layer
        layer = [child for parent in layer for child in children.get(parent, [])]
    return found


def end_descendants() -> None:
    """Kill what this process started, and what that started: also where it made itself leader of a session.

    Ansible's workers do; whoever kills the group of ansible-playbook alone leaves them behind with their ssh.
    """
    for pid in descendants(os.getpid()):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
