"""What was made of a file, kept for as long as the file is the same: a thousand nodes share known_hosts and keys."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

__all__ = ["remembered"]

T = TypeVar("T")


def remembered(read: Callable[[Path], T]) -> Callable[[Path], T]:
    """Call `read` once for each content of a file; what it raises is not kept."""

    @functools.lru_cache(maxsize=64)
    def reading(path: Path, _seen: tuple[int, ...]) -> T:
        return read(path)

    @functools.wraps(read)
    def ask(path: Path) -> T:
        try:
            status = os.stat(path)  # noqa: PTH116 - Path.stat takes three times as long, a thousand nodes long
        except OSError:
            return read(path)
        return reading(
            path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)
        )

    return ask
