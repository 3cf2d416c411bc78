"""Refusals of requests that fail because this node cannot store files. Python 3.6 or newer."""

import errno
import os

from provision.node.files import Refused
from provision.node.jobs import records as node_records

_FULL = {errno.ENOSPC: "no space left", errno.EDQUOT: "its disk quota is used up"}


def refusal(problem: OSError) -> Refused:
    """Return the answer after an OSError; for storage it has the path and a remedy."""
    path = problem.filename or _full_folder() or node_records.ROOT
    path = path.decode(errors="replace") if isinstance(path, bytes) else str(path)
    if problem.errno in _FULL:
        return Refused(
            "{} cannot be written: {}".format(path, _FULL[problem.errno]),
            "Free space on the file system of {} (df -h and df -i show it), then repeat the command".format(path),
        )
    if problem.errno == errno.EROFS:
        return Refused(
            "{} cannot be written: its file system is mounted read-only".format(path),
            "Find the cause in dmesg, then remount it: mount -o remount,rw PATH",
        )
    return Refused(str(problem))


def _full_folder() -> str:
    """Return the first folder of jobs whose file system has no free block or inode, empty if there is none."""
    for path in (node_records.ROOT, node_records.RUN, os.path.dirname(node_records.ROOT)):
        try:
            status = os.statvfs(path)
        except OSError:
            continue
        if not status.f_bavail or (status.f_files and not status.f_ffree):
            return path
    return ""
