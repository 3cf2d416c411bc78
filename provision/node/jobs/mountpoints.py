"""Mount points that are created on this node for units, and removed when no unit uses them.

The mounts are visible in the unit only, but every mount point has to exist on the node.
"""

import os
from typing import Iterable, List, Tuple

from provision.node.files import Refused, names_in, read_json, remove, remove_tree, write_json
from provision.node.jobs.leases import LeaseLock
from provision.node.jobs.paths import Account, make_path, real_path, remove_empty
from provision.node.jobs.records import ROOT
from provision.node.jobs.units import UNITS, is_running, kill, kill_all, unit_folder, unit_record

MADE = os.path.join(ROOT, ".mountpoints")


def make(pairs: Iterable[Tuple[str, str]], account: Account = (0, ())) -> None:
    """Create folders and empty files as mount points, and the folders above them."""
    with LeaseLock():
        made = list(read_json(MADE).get("made") or ())
        try:
            for source, target in pairs:
                make_one(target, made, account, is_file=bool(source) and os.path.isfile(source))
        finally:
            if made:
                write_json(MADE, {"made": made})


def make_one(target: str, made: List[str], account: Account, *, is_file: bool) -> None:
    """Create a mount point that does not exist, and add the created paths to `made`."""
    try:
        make_path(target, made, is_file=is_file, account=account)
    except PermissionError:
        raise Refused(
            "the mount point {} cannot be created: root may not write there, as on homes of an NFS server that "
            "squashes root. Use --working-dir or --mount with a path on a disk of the node.".format(target)
        ) from None


def remove_unused() -> None:
    """Remove created mount points that no unit uses and that are empty."""
    if not read_json(MADE):
        return
    try:
        with LeaseLock():
            targets = [str(path) for unit in names_in(UNITS) for path in unit_record(unit).get("targets") or ()]
            used = [*targets, *filter(None, map(real_path, targets))]
            left = []
            for path in sorted(read_json(MADE).get("made") or (), reverse=True):
                if any(one == path or one.startswith(path + "/") for one in used):
                    left.append(path)
                else:
                    remove_empty(path)
            if left:
                write_json(MADE, {"made": left})
            else:
                remove(MADE)
    except (Refused, OSError):
        return  # the next call removes them


def forget(unit: str) -> None:
    """Remove the records and mount points of a unit; kill it first if it runs."""
    if is_running(unit):
        kill(unit)
        kill_all(unit)
    remove_tree(unit_folder(unit))
    remove_unused()
