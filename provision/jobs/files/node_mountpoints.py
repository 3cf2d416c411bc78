"""What is made on this node for a unit to mount upon, and taken away when no unit uses it any more.

The mounts are the unit's own, but where a path is mounted upon there has to be something on the node.
"""

import os

from node_files import Refused, names_in, read_json, remove, write_json
from node_leases import Locked
from node_records import ROOT
from node_units import UNITS, about

MADE = os.path.join(ROOT, ".mountpoints")


def make(pairs):
    """Make folders, and empty files, to mount upon; those above them are made too.

    Args:
        pairs: (what is mounted, or "" for a folder; the path that it is mounted upon).
    """
    with Locked():
        made = list(read_json(MADE).get("made") or ())
        try:
            for source, target in pairs:
                make_one(target, made, is_file=bool(source) and os.path.isfile(source))
        finally:
            if made:
                write_json(MADE, {"made": made})


def make_one(target, made, *, is_file):
    """Make a path where there is none, and add what was made to `made`."""
    refuse_links(target)
    missing, path = [], target
    while not os.path.lexists(path):
        missing.insert(0, path)
        path = os.path.dirname(path)
    try:
        for path in missing:
            if is_file and path == target:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            else:
                os.mkdir(path, 0o755)
            made.append(path)
    except PermissionError:
        raise Refused(
            "{} cannot be made to mount upon: there root may not write, as on homes of an NFS server that squashes "
            "root; --working-dir or --mount with a path on a disk of the node itself can be".format(target)
        ) from None


def refuse_links(target):
    """Refuse a path that leads through another account's link: root would make, and see, what that account chooses.

    The unit's first program is root's and sees the unit's mounts: one upon the node's own programs would be obeyed.
    """
    path = target
    while os.path.dirname(path) != path:
        if os.path.islink(path) and os.lstat(path).st_uid:
            raise Refused("{} is not mounted upon: {} is a link, and not root's".format(target, path))
        path = os.path.dirname(path)


def take_away():
    """Remove what was made and no unit uses; what somebody has put something into stays."""
    if not read_json(MADE):
        return
    try:
        with Locked():
            used = [str(path) for unit in names_in(UNITS) for path in about(unit).get("targets") or ()]
            kept = []
            for path in sorted(read_json(MADE).get("made") or (), reverse=True):
                if any(one == path or one.startswith(path + "/") for one in used):
                    kept.append(path)
                else:
                    remove_empty(path)
            if kept:
                write_json(MADE, {"made": kept})
            else:
                remove(MADE)
    except (Refused, OSError):
        return  # the next one does it


def remove_empty(path):
    """Remove an empty folder, or an empty file."""
    try:
        if os.path.islink(path):
            return
        if os.path.isdir(path):
            os.rmdir(path)
        elif os.stat(path).st_size == 0:
            os.unlink(path)
    except OSError:
        pass
