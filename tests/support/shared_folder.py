"""A folder that container nodes share: SIMULATED network storage. It needs root on this machine.

The folder is mounted in the nodes by the kernel's calls for mounts in other namespaces (open_tree(2), move_mount(2)); a
node that starts again has lost it, as one whose network storage does not answer.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from tests.support.command import ROOT
from tests.support.engine import held

_OPEN_TREE, _MOVE_MOUNT = 428, 429
_AT_FDCWD, _OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _CLONE_NEWNS = -100, 1, 4, 0x00020000


def share(engine: str, folder: Path, nodes: list[str], path: str) -> None:
    """Mount a folder of this machine in container nodes.

    Args:
        engine: the address of the Docker engine of the nodes.
        folder: the folder of this machine.
        nodes: the names of the containers.
        path: where the nodes have it; the folder is created there.
    """
    for pid in held(engine, "inspect", "--format", "{{.State.Pid}}", *nodes):
        argv = [sys.executable, "-m", "tests.support.shared_folder", pid, str(folder), path]
        subprocess.run(argv, cwd=ROOT, check=True)


def main() -> None:
    """Enter the mount namespace of a process, and mount the folder there."""
    pid, folder, path = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    tree = libc.syscall(_OPEN_TREE, _AT_FDCWD, folder.encode(), _OPEN_TREE_CLONE)
    _check(tree)
    space = os.open(f"/proc/{int(pid)}/ns/mnt", os.O_RDONLY)
    _check(libc.setns(space, _CLONE_NEWNS))
    Path(path).mkdir(parents=True, exist_ok=True)
    _check(libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, path.encode(), _MOVE_MOUNT_F_EMPTY_PATH))


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
