"""How many nodes at once this machine has room for: its limits of open files and of threads' memory."""

from __future__ import annotations

import logging
import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["room_for"]

_SPARE_FILES = 64
"""For all that is no node: the programs that are asked, files that are read."""
_STACK_BYTES = 1024 * 1024
_MANY = 32
"""From how many nodes on the threads count: each node has two."""
_SWITCH_SECONDS = 0.05
"""How long a thread may compute before another takes Python's one processor from it in the middle of something. Most
of what is done for a node takes less, and by itself Python would have them change ten times as often."""


@contextmanager
def room_for(nodes: int, files_each: int) -> Iterator[int]:
    """Make room for working on `nodes` at once; yield how many there is room for, and say so when that is fewer.

    The soft limit of open files is raised as far as the hard one lets us, and put back afterwards; so are the threads'
    stacks made smaller, of which eight MiB each would be set aside, and threads changed less often.
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
                "note: %d of %d nodes at once, because this machine allows %d open files (ulimit -n)",
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
