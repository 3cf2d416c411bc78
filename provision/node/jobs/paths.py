"""Opens and makes paths of which accounts other than root control a part, without following their links.

Every step is relative to a directory that is already open, so that nobody can exchange what was checked. One way for
all kernels: openat2 of Linux 5.6 does no more. Python 3.6 or newer.
"""

import errno
import os
import stat

from provision.node.files import Refused

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
ANYTHING = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
LINKS = 40
FOR_MOUNTS = ("/", "/mnt", "/media", "/opt", "/srv")
"""Folders of root's in which a mount point is made for any account."""


class Path:
    """An open directory on the way to a path, and the components that are still to come."""

    def __init__(self, path):
        if not path.startswith("/"):
            raise Refused("{} is not an absolute path".format(path))
        self.path, self.at = path, "/"
        self.handle = os.open("/", FOLDER)
        self.rest = path.split("/")[::-1]
        self.links = 0
        self.is_roots = True  # root alone could exchange what root made, in every directory so far

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.handle)

    def next(self):
        """Return the next component; empty at the end of the path."""
        while self.rest and self.rest[-1] in ("", "."):
            self.rest.pop()
        about = os.fstat(self.handle)
        is_closed = not about.st_mode & 0o022 or bool(about.st_mode & stat.S_ISVTX)
        self.is_roots = self.is_roots and about.st_uid == 0 and is_closed
        if self.rest and self.rest[-1] == ".." and not self.is_roots:
            raise Refused("{}: '..' below {}, which others than root can change".format(self.path, self.at))
        return self.rest[-1] if self.rest else ""

    def enter(self):
        """Open the next component, and follow it where it is a link that root alone could make.

        Raises:
            FileNotFoundError: there is no such component.
            Refused: it is a link, and its owner or the owner of its directory is not root.
        """
        name = self.rest.pop()
        try:
            handle = os.open(name, FOLDER, dir_fd=self.handle)
        except OSError as problem:
            if problem.errno not in (errno.ENOTDIR, errno.ELOOP):
                self.rest.append(name)
                raise
            handle = os.open(name, ANYTHING, dir_fd=self.handle)
        if stat.S_ISLNK(os.fstat(handle).st_mode):
            self._follow(handle, name)
            return
        os.close(self.handle)
        self.handle, self.at = handle, os.path.join(self.at, name)

    def _follow(self, handle, name):
        self.links += 1
        trusted = self.is_roots and os.fstat(handle).st_uid == 0
        target = os.readlink("", dir_fd=handle) if trusted else ""
        os.close(handle)
        link = os.path.join(self.at, name)
        if not trusted:
            raise Refused("{} is not used: {} is a link, and not root's alone".format(self.path, link))
        if self.links > LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self.path)
        self.rest += target.split("/")[::-1]
        if target.startswith("/"):
            os.close(self.handle)
            self.handle, self.at = os.open("/", FOLDER), "/"


def open_path(path):
    """Return a descriptor (O_PATH) of an existing path; OSError or Refused where it cannot be had."""
    with Path(path) as way:
        while way.next():
            way.enter()
        return os.dup(way.handle)


def is_within(path, folder):
    """Return whether a path is in a folder, without a way out of it."""
    return path.startswith(folder + "/") and ".." not in path.split("/")


def real_path(path):
    """Return where a path leads, by `open_path`; empty where it leads nowhere."""
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


def make_path(path, made, *, is_file=False, account=(0, ())):
    """Make a folder, or an empty file, and the folders above it, where they do not exist.

    Args:
        path: what is to exist.
        made: the list to which every path that is made is added.
        is_file: whether it is a file.
        account: uid and groups of whom it is made for.

    Raises:
        Refused: the account could not make it itself, and it is not directly below one of `FOR_MOUNTS`.
    """
    own = False
    with Path(path) as way:
        while way.next():
            try:
                way.enter()
            except FileNotFoundError:
                _make(way, account, made, own=own, is_file=is_file)
                own = True


def _make(way, account, made, *, own, is_file):
    """Make the next component of a path, and enter it."""
    name = way.next()
    where = os.path.join(way.at, name)
    if not own and not _may_make(way, name, *account):
        raise Refused(
            "{} does not exist, and the account may not make it".format(where),
            "make it on the node, or choose a path in the home of the account or directly below one of: "
            + " ".join(FOR_MOUNTS),
        )
    is_last = not [word for word in way.rest[:-1] if word not in ("", ".")]
    if is_file and is_last:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(name, flags, 0o644, dir_fd=way.handle))
    else:
        os.mkdir(name, 0o755, dir_fd=way.handle)
    made.append(where)
    way.enter()


def _may_make(way, name, uid, groups):
    """Return whether an account could make an entry in the open directory by its mode, or root does it for any."""
    about = os.fstat(way.handle)
    if uid == 0 or (way.at in FOR_MOUNTS and way.is_roots and not name.startswith(".")):
        return True
    if about.st_uid == uid:
        return bool(about.st_mode & stat.S_IWUSR)
    return bool(about.st_mode & (stat.S_IWGRP if about.st_gid in groups else stat.S_IWOTH))


def remove_empty(path):
    """Remove an empty folder or an empty file, and nothing else."""
    parent, name = os.path.split(path)
    try:
        handle = open_path(parent)
    except (OSError, Refused):
        return
    try:
        about = os.stat(name, dir_fd=handle, follow_symlinks=False)
        if stat.S_ISDIR(about.st_mode):
            os.rmdir(name, dir_fd=handle)
        elif stat.S_ISREG(about.st_mode) and about.st_size == 0:
            os.unlink(name, dir_fd=handle)
    except OSError:
        pass
    finally:
        os.close(handle)
