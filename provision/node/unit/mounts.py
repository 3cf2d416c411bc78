"""Creates the mounts of an instance that is a process of this node, in its own mount namespace.

The shim stays outside. Its child, which becomes the instance, opens all sources first, creates the mounts in a folder
of root, and then moves them to their targets by descriptors. After the first mount nothing is imported, and every path
is resolved relative to an open directory, because the account controls what is mounted.
"""

import ctypes
import os
import stat
from typing import List, Optional, Sequence, Tuple, Union

from provision.node import files as node_files
from provision.node.jobs import paths as node_paths
from provision.node.unit.launch import Bind, Launch

NEW_NAMESPACE = 0x00020000
READ_ONLY, REMOUNT, BIND, MOVE, RECURSIVE, SLAVE = 1, 32, 4096, 8192, 16384, 1 << 19
FLAGS = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
NO_NEW_PRIVILEGES = 38
LIBRARY = ctypes.CDLL(None, use_errno=True)
MOUNT, UNSHARE, PRCTL = LIBRARY.mount, LIBRARY.unshare, LIBRARY.prctl
MOUNT.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
PRCTL.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
STAGE = "mounts"
"""The folder in a unit's folder in which its mounts are created."""


def check(result: int, call: str) -> None:
    """Raise the error of a system call that failed."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, "{}: {}".format(call, os.strerror(number)))


def mount(
    source: Union[str, int],
    target: Union[str, int],
    flags: int,
    kind: bytes = b"none",
    data: Optional[bytes] = None,
    title: str = "",
) -> None:
    """Mount by paths; numbers are descriptors, as paths relative to the working directory."""
    paths = [os.fsencode(str(path)) for path in (source, target)]
    check(MOUNT(*paths, kind, flags, data), "mount upon {}".format(title or target))


def give_up_privileges() -> None:
    """Prevent this process and its programs from gaining privileges, for example by a setuid program."""
    check(PRCTL(NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no_new_privs")


def enter_namespace(unit_folder: str, launch: Launch) -> None:
    """Create a mount namespace with the mounts of a unit, and enter it."""
    stage = os.path.join(unit_folder, STAGE)
    os.makedirs(stage, mode=0o700, exist_ok=True)
    check(UNSHARE(NEW_NAMESPACE), "unshare")
    mount("none", "/", RECURSIVE | SLAVE)
    os.chdir("/proc/self/fd")  # of this process, independent of later mounts at /proc
    sources = open_sources(launch)
    staged = [
        (bind.target, stage_bind(stage, number, handle, is_read_only=bind.mode == "ro"))
        for number, (handle, bind) in enumerate(zip(sources, launch.binds))
    ]
    staged += [(path, stage_memory(stage, len(staged) + at)) for at, path in enumerate(launch.private)]
    for target, handle in sorted(staged, key=lambda pair: pair[0].count("/")):
        mount(handle, node_paths.open_path(target), MOVE, title=target)
    os.chdir("/")


def open_sources(launch: Launch) -> List[int]:
    """Return a descriptor of each source, opened by root in the job's own folder, else with the account's rights.

    Root would open, and mount for the account, files of other users in a folder that the account cannot enter.
    """
    handles = [node_paths.open_path(bind.source) if bind.is_of_job else None for bind in launch.binds]
    os.setgroups(launch.groups)
    os.setegid(launch.gid)
    os.seteuid(launch.uid)
    try:
        return [_open_source(handle, bind) for handle, bind in zip(handles, launch.binds)]
    finally:
        os.seteuid(0)
        os.setegid(0)


def _open_source(handle: Optional[int], bind: Bind) -> int:
    return open_any(bind.source) if handle is None else handle


def open_any(path: str) -> int:
    """Return a descriptor (O_PATH) of a path, with the current rights of this process."""
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except NotADirectoryError:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)


def stage_bind(stage: str, number: int, source: int, *, is_read_only: bool) -> int:
    """Bind a source in the folder of root; return a descriptor of the mount."""
    point = os.path.join(stage, str(number))
    make_mount_point(point, is_folder=stat.S_ISDIR(os.fstat(source).st_mode))
    mount(source, point, BIND | RECURSIVE)
    for path, options in mounts_below(point) if is_read_only else ():
        mount("none", path, REMOUNT | BIND | READ_ONLY | sum(FLAGS.get(word, 0) for word in options))
    return os.open(point, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)


def make_mount_point(path: str, *, is_folder: bool) -> None:
    """Create the folder or the file at which a source is bound."""
    if is_folder:
        os.mkdir(path, 0o700)
    else:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def mounts_below(point: str) -> List[Tuple[str, Sequence[str]]]:
    """Return path and options of a mount and of all mounts below it."""
    mounts: List[Tuple[str, Sequence[str]]] = []
    for line in node_files.read_text("/proc/self/mountinfo").splitlines():
        path, options = line.split(" ", 6)[4:6]
        path = unescaped(path)
        if path == point or path.startswith(point + "/"):
            mounts.append((path, options.split(",")))
    return mounts


def unescaped(path: str) -> str:
    """Return a path without the kernel's octal escapes."""
    for character in " \t\n\\":
        path = path.replace("\\{:03o}".format(ord(character)), character)
    return path


def stage_memory(stage: str, number: int) -> int:
    """Create a world-writable file system in memory; return a descriptor of it."""
    point = os.path.join(stage, str(number))
    os.mkdir(point, 0o700)
    mount("tmpfs", point, FLAGS["nosuid"] | FLAGS["nodev"], b"tmpfs", b"mode=1777")
    return os.open(point, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
