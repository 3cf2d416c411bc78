"""Makes the mounts of an instance that is a process of this node, in a namespace of its own.

The shim stays outside. Its child, which becomes the instance, opens all sources first, arranges the mounts in a folder
of root's, and then moves them upon their targets by descriptors. From the first mount on nothing is imported, and no
path is resolved but relative to an open directory: what is mounted is the account's.
"""

import ctypes
import os
import stat

from provision.node import files as node_files
from provision.node.jobs import paths as node_paths

NEW_NAMESPACE = 0x00020000
READ_ONLY, REMOUNT, BIND, MOVE, RECURSIVE, SLAVE = 1, 32, 4096, 8192, 16384, 1 << 19
FLAGS = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
NO_NEW_PRIVILEGES = 38
LIBRARY = ctypes.CDLL(None, use_errno=True)
MOUNT, UNSHARE, PRCTL = LIBRARY.mount, LIBRARY.unshare, LIBRARY.prctl
MOUNT.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
PRCTL.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
STAGE = "mounts"
"""Of a unit's folder: where its mounts are arranged."""


def call(done, what):
    """Raise the error of a system call that failed."""
    if done:
        number = ctypes.get_errno()
        raise OSError(number, "{}: {}".format(what, os.strerror(number)))


def mount(source, target, flags, kind=b"none", data=None, title=""):
    """Mount by paths, which are relative to the working folder where they are numbers of descriptors."""
    words = [os.fsencode(str(path)) for path in (source, target)]
    call(MOUNT(*words, kind, flags, data), "mount upon {}".format(title or target))


def give_up_privileges():
    """Have no program that this process ever becomes gain privileges, as setuid programs do."""
    call(PRCTL(NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no_new_privs")


def enter(place, told):
    """See the mounts of a unit from now on.

    Args:
        place: the folder of the unit.
        told: what the shim reads: `binds` with [source, target, mode, whether the source is the job's own folder's],
            `private`, and the account.
    """
    stage = os.path.join(place, STAGE)
    os.makedirs(stage, mode=0o700, exist_ok=True)
    call(UNSHARE(NEW_NAMESPACE), "unshare")
    mount("none", "/", RECURSIVE | SLAVE)
    os.chdir("/proc/self/fd")  # of this process, and whatever is mounted upon /proc later
    sources = opened([(source, own) for source, _, _, own in told["binds"]], told)
    staged = [
        (target, arranged(stage, number, handle, is_read_only=mode == "ro"))
        for number, (handle, (_, target, mode, _)) in enumerate(zip(sources, told["binds"]))
    ]
    staged += [(path, in_memory(stage, len(staged) + at)) for at, path in enumerate(told["private"])]
    for target, handle in sorted(staged, key=lambda pair: pair[0].count("/")):
        mount(handle, node_paths.open_path(target), MOVE, title=target)
    os.chdir("/")


def opened(sources, told):
    """Return a descriptor of each source: of the job's own folder by root, of any other with the account's rights.

    Root would open, and mount for the account, what the account cannot reach: files of others below a closed folder.
    """
    handles = [node_paths.open_path(source) if own else None for source, own in sources]
    os.setgroups(told["groups"])
    os.setegid(told["gid"])
    os.seteuid(told["uid"])
    try:
        return [open_anything(path) if handle is None else handle for handle, (path, _) in zip(handles, sources)]
    finally:
        os.seteuid(0)
        os.setegid(0)


def open_anything(path):
    """Return a descriptor (O_PATH) of a path, with the rights that this process has now."""
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except NotADirectoryError:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)


def arranged(stage, number, source, *, is_read_only):
    """Bind a source in the folder of root's; return a descriptor of the mount."""
    point = os.path.join(stage, str(number))
    make_point(point, is_folder=stat.S_ISDIR(os.fstat(source).st_mode))
    mount(source, point, BIND | RECURSIVE)
    for path, options in mounts_below(point) if is_read_only else ():
        mount("none", path, REMOUNT | BIND | READ_ONLY | sum(FLAGS.get(word, 0) for word in options))
    return os.open(point, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)


def make_point(path, *, is_folder):
    """Make what a source is bound upon."""
    if is_folder:
        os.mkdir(path, 0o700)
    else:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def mounts_below(point):
    """Return (path, options) of a mount and of all below it."""
    found = []
    for line in node_files.read_text("/proc/self/mountinfo").splitlines():
        path, options = line.split(" ", 6)[4:6]
        path = decoded(path)
        if path == point or path.startswith(point + "/"):
            found.append((path, options.split(",")))
    return found


def decoded(path):
    """Return a path as it is, of which the kernel writes some characters as numbers."""
    for character in " \t\n\\":
        path = path.replace("\\{:03o}".format(ord(character)), character)
    return path


def in_memory(stage, number):
    """Make a file system in memory that everybody may write to; return a descriptor of it."""
    point = os.path.join(stage, str(number))
    os.mkdir(point, 0o700)
    mount("tmpfs", point, FLAGS["nosuid"] | FLAGS["nodev"], b"tmpfs", b"mode=1777")
    return os.open(point, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
