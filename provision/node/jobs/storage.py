"""Words for requests that fail because this node can store nothing. Python 3.6 or newer, and nothing else."""

import errno
import os

from provision.node.files import Refused
from provision.node.jobs import records as node_records

_FULL = {errno.ENOSPC: "no space left", errno.EDQUOT: "its disk quota is used up"}


def refusal(problem):
    """Return what a request answers after an OSError: for storage with the place, and how to go on."""
    place = problem.filename or _full_place() or node_records.ROOT
    place = place.decode(errors="replace") if isinstance(place, bytes) else str(place)
    if problem.errno in _FULL:
        return Refused(
            "{} cannot be written: {}".format(place, _FULL[problem.errno]),
            "Free space on the file system of {} (df -h and df -i show it), then repeat the command".format(place),
        )
    if problem.errno == errno.EROFS:
        return Refused(
            "{} cannot be written: its file system is mounted read-only".format(place),
            "Find the cause in dmesg, then remount it: mount -o remount,rw PATH",
        )
    return Refused("{}".format(problem))


def _full_place():
    """Return the first of our folders whose file system has no block or no inode left; empty: none."""
    for path in (node_records.ROOT, node_records.RUN, os.path.dirname(node_records.ROOT)):
        try:
            room = os.statvfs(path)
        except OSError:
            continue
        if not room.f_bavail or (room.f_files and not room.f_ffree):
            return path
    return ""
