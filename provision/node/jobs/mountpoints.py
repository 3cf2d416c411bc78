"""What is made on this node for a unit to mount upon, and taken away when no unit uses it any more.

The mounts are the unit's own, but where a path is mounted upon there has to be something on the node.
"""

import os

from provision.node.files import Refused, names_in, read_json, remove, remove_tree, write_json
from provision.node.jobs.leases import Locked
from provision.node.jobs.paths import make_path, real_path, remove_empty
from provision.node.jobs.records import ROOT
from provision.node.jobs.units import UNITS, about, is_running, kill, kill_all, place_of

MADE = os.path.join(ROOT, ".mountpoints")


def make(pairs, account=(0, ())):
    """Make folders, and empty files, to mount upon; those above them are made too.

    Args:
        pairs: (what is mounted, or "" for a folder; the path that it is mounted upon).
        account: uid and groups of the account that the mounts are for.
    """
    with Locked():
        made = list(read_json(MADE).get("made") or ())
        try:
            for source, target in pairs:
                make_one(target, made, account, is_file=bool(source) and os.path.isfile(source))
        finally:
            if made:
                write_json(MADE, {"made": made})


def make_one(target, made, account, *, is_file):
    """Make a path where there is none, and add what was made to `made`."""
    try:
        make_path(target, made, is_file=is_file, account=account)
    except PermissionError:
        raise Refused(
            "{} cannot be made to mount upon: there root may not write, as on homes of an NFS server that squashes "
            "root; --working-dir or --mount with a path on a disk of the node itself can be".format(target)
        ) from None


def take_away():
    """Remove what was made and no unit uses; what somebody has put something into stays."""
    if not read_json(MADE):
        return
    try:
        with Locked():
            targets = [str(path) for unit in names_in(UNITS) for path in about(unit).get("targets") or ()]
            used = [*targets, *filter(None, map(real_path, targets))]
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


def forget(unit):
    """Remove the records and mount points of a unit; one that runs is ended before."""
    if is_running(unit):
        kill(unit)
        kill_all(unit)
    remove_tree(place_of(unit))
    take_away()
