"""Cache for results computed from a file, valid while the file is unchanged: many nodes share known_hosts and keys."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def remembered(read: Callable[[Path], T]) -> Callable[[Path], T]:
    """Call `read` once for each version of a file. Errors are not cached."""

    @functools.lru_cache(maxsize=64)
    def reading(path: Path, _seen: tuple[int, ...]) -> T:
        return read(path)

    @functools.wraps(read)
    def ask(path: Path) -> T:
        try:
            status = os.stat(path)  # noqa: PTH116 - Path.stat takes three times as long
        except OSError:
            return read(path)
        return reading(
            path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)
        )

    return ask
