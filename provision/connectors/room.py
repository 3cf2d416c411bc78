"""Limits of the controller for parallel connections: open files and memory of threads."""

from __future__ import annotations

import logging
import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SPARE_FILES = 64
"""Open files that are reserved for programs and files."""
_STACK_BYTES = 1024 * 1024
_MANY = 32
"""Number of nodes from which the number of threads matters; each node has two."""
_SWITCH_SECONDS = 0.05
"""Time slice of a thread in seconds. Most work for one node takes less time. Python's default would switch threads ten
times as often."""


@contextmanager
def room_for(nodes: int, files_each: int) -> Iterator[int]:
    """Prepare the controller for `nodes` parallel connections and yield how many are possible, with a note if fewer.

    The soft limit of open files is raised towards the hard limit and restored afterwards. Threads get smaller stacks
    than the default of eight MiB, and are switched less often.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = _open_files()
    needed = open_now + _SPARE_FILES + nodes * files_each
    stack, interval = threading.stack_size(), sys.getswitchinterval()
    try:
        if needed > soft:
            soft_now = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft_now, hard))
        else:
            soft_now = soft
        if nodes >= _MANY:
            threading.stack_size(_STACK_BYTES)
            sys.setswitchinterval(_SWITCH_SECONDS)
        fit = max(1, min(nodes, (soft_now - open_now - _SPARE_FILES) // files_each))
        if fit < nodes:
            logging.getLogger("provision").warning(
                "note: %d of %d nodes in parallel, because the controller allows %d open files (ulimit -n)",
                fit,
                nodes,
                soft_now,
            )
        yield fit
    finally:
        threading.stack_size(stack)
        sys.setswitchinterval(interval)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone
    except OSError:
        return _SPARE_FILES
