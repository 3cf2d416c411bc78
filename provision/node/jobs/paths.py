"""Opens and creates paths whose folders accounts other than root control, without following links of these accounts.

Every step is relative to a folder that is already open, so that no process can exchange what was checked. openat2
(Linux 5.6) offers nothing more, so all kernels use the same code. Python 3.6 or newer.
"""

import errno
import os
import stat
from typing import List, Sequence, Tuple

from provision.node.files import Refused

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
ANY_FILE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_LINKS = 40
MOUNT_FOLDERS = ("/", "/mnt", "/media", "/opt", "/srv")
"""Folders of root in which a mount point is created for any account."""

Account = Tuple[int, Sequence[int]]
"""User ID and group IDs."""


class PathWalk:
    """The open folder that a walk along a path has reached, and the remaining components."""

    def __init__(self, path: str) -> None:
        if not path.startswith("/"):
            raise Refused("{}: the path is not absolute".format(path))
        self.path, self.folder = path, "/"
        self.handle = os.open("/", FOLDER)
        self.rest = path.split("/")[::-1]
        self.links = 0
        self.is_roots = True  # only root can exchange what root created, in every folder so far

    def __enter__(self) -> "PathWalk":  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)

    def next(self) -> str:
        """Return the next component, empty at the end of the path."""
        while self.rest and self.rest[-1] in ("", "."):
            self.rest.pop()
        status = os.fstat(self.handle)
        is_closed = not status.st_mode & 0o022 or bool(status.st_mode & stat.S_ISVTX)
        self.is_roots = self.is_roots and status.st_uid == 0 and is_closed
        if self.rest and self.rest[-1] == ".." and not self.is_roots:
            raise Refused("{}: '..' below {}, which other accounts than root can change".format(self.path, self.folder))
        return self.rest[-1] if self.rest else ""

    def enter(self) -> None:
        """Open the next component, and follow it if it is a link that only root can have created.

        Raises:
            FileNotFoundError: the component does not exist.
            Refused: it is a link, and it or its folder belongs to another account than root.
        """
        name = self.rest.pop()
        try:
            handle = os.open(name, FOLDER, dir_fd=self.handle)
        except OSError as problem:
            if problem.errno not in (errno.ENOTDIR, errno.ELOOP):
                self.rest.append(name)
                raise
            handle = os.open(name, ANY_FILE, dir_fd=self.handle)
        if stat.S_ISLNK(os.fstat(handle).st_mode):
            self._follow(handle, name)
            return
        os.close(self.handle)
        self.handle, self.folder = handle, os.path.join(self.folder, name)

    def _follow(self, handle: int, name: str) -> None:
        self.links += 1
        is_trusted = self.is_roots and os.fstat(handle).st_uid == 0
        target = os.readlink("", dir_fd=handle) if is_trusted else ""
        os.close(handle)
        link = os.path.join(self.folder, name)
        if not is_trusted:
            raise Refused("{}: {} is a link, and other accounts than root can change it".format(self.path, link))
        if self.links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self.path)
        self.rest += target.split("/")[::-1]
        if target.startswith("/"):
            os.close(self.handle)
            self.handle, self.folder = os.open("/", FOLDER), "/"


def open_path(path: str) -> int:
    """Return a descriptor (O_PATH) of an existing path.

    Raises:
        OSError: the path does not exist or cannot be opened.
        Refused: the path leads through a link of another account than root.
    """
    with PathWalk(path) as walk:
        while walk.next():
            walk.enter()
        return os.dup(walk.handle)


def is_within(path: str, folder: str) -> bool:
    """Return whether a path is below a folder and contains no `..`."""
    return path.startswith(folder + "/") and ".." not in path.split("/")


def real_path(path: str) -> str:
    """Return a path without links, empty if `open_path` cannot open it."""
    try:
        handle = open_path(path)
    except (OSError, Refused):
        return ""
    try:
        return os.readlink("/proc/self/fd/{}".format(handle))
    except OSError:
        return ""
    finally:
        os.close(handle)


def make_path(path: str, made: List[str], *, is_file: bool = False, account: Account = (0, ())) -> None:
    """Create a folder or an empty file, and the folders above it, if they do not exist.

    Raises:
        Refused: the account has no permission to create it, and it is not directly below one of `MOUNT_FOLDERS`.
    """
    inside_new = False
    with PathWalk(path) as walk:
        while walk.next():
            try:
                walk.enter()
            except FileNotFoundError:
                _make(walk, account, made, inside_new=inside_new, is_file=is_file)
                inside_new = True


def _make(walk: PathWalk, account: Account, made: List[str], *, inside_new: bool, is_file: bool) -> None:
    """Create the next component of a path, and enter it."""
    name = walk.next()
    path = os.path.join(walk.folder, name)
    if not inside_new and not _may_make(walk, name, *account):
        raise Refused(
            "{} does not exist, and the account may not create it".format(path),
            "Create it on the node, or choose a path in the home of the account or directly below one of: "
            + " ".join(MOUNT_FOLDERS),
        )
    is_last = not [word for word in walk.rest[:-1] if word not in ("", ".")]
    if is_file and is_last:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(name, flags, 0o644, dir_fd=walk.handle))
    else:
        os.mkdir(name, 0o755, dir_fd=walk.handle)
    made.append(path)
    walk.enter()


def _may_make(walk: PathWalk, name: str, uid: int, groups: Sequence[int]) -> bool:
    """Return whether an account has permission to create a name in the open folder, or root creates it for any."""
    status = os.fstat(walk.handle)
    if uid == 0 or (walk.folder in MOUNT_FOLDERS and walk.is_roots and not name.startswith(".")):
        return True
    if status.st_uid == uid:
        return bool(status.st_mode & stat.S_IWUSR)
    return bool(status.st_mode & (stat.S_IWGRP if status.st_gid in groups else stat.S_IWOTH))


def remove_empty(path: str) -> None:
    """Remove an empty folder or an empty file, and nothing else."""
    parent, name = os.path.split(path)
    try:
        handle = open_path(parent)
    except (OSError, Refused):
        return
    try:
        status = os.stat(name, dir_fd=handle, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            os.rmdir(name, dir_fd=handle)
        elif stat.S_ISREG(status.st_mode) and status.st_size == 0:
            os.unlink(name, dir_fd=handle)
    except OSError:
        pass
    finally:
        os.close(handle)
