"""Shares a folder of one lab node with another one, as a file server does. Run as root: it needs the mount namespaces.

``shared_home.py FIRST FOLDER SECOND`` mounts the folder of the process FIRST at the same path for the process SECOND.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

OPEN_TREE, MOVE_MOUNT = 428, 429
CLONE, EMPTY_PATH, NEW_MOUNTS, HERE = 0x80001, 4, 0x20000, -100
_LIBC = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _namespace(process: str) -> int:
    return os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY)


def main(first: str, folder: str, second: str) -> None:
    """Mount the folder."""
    target = _namespace(second)
    _checked(_LIBC.setns(_namespace(first), NEW_MOUNTS))
    tree = _checked(_LIBC.syscall(OPEN_TREE, HERE, folder.encode(), CLONE))
    _checked(_LIBC.setns(target, NEW_MOUNTS))
    Path(folder).mkdir(parents=True, exist_ok=True)
    _checked(_LIBC.syscall(MOVE_MOUNT, tree, b"", HERE, folder.encode(), EMPTY_PATH))


if __name__ == "__main__":
    main(*sys.argv[1:])
