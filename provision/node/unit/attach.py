"""Runs a command in an instance that is a process of this node.

The command has the account and the mounts of the instance, and belongs to its unit, with which it ends.
"""

import os
import re
import resource
import sys
from typing import Dict, List, NoReturn

from provision.node import files as node_files
from provision.node.jobs import units as node_units
from provision.node.unit import mounts as unit_mounts
from provision.node.unit import shim as unit_shim

CGROUPS = "/sys/fs/cgroup"
LIMITS = {
    "CORE": "core file size",
    "DATA": "data size",
    "FSIZE": "file size",
    "MEMLOCK": "locked memory",
    "NOFILE": "open files",
    "NPROC": "processes",
    "STACK": "stack size",
    "AS": "address space",
}
"""Python's names -> the kernel's."""


def attach(unit_folder: str, command: List[str]) -> NoReturn:
    """Execute the command in this process; OSError if the instance does not run or cannot be entered."""
    known = node_files.read_json(os.path.join(unit_folder, "run"))
    unit = os.path.basename(unit_folder)
    handle = open_process(known.get("pid"), unit)
    environment = variables_of(handle)
    if os.environ.get("TERM"):
        environment.setdefault("TERM", os.environ["TERM"])
    join_groups(handle, unit)
    set_limits(read_file(handle, "limits"))
    enter_mounts(handle)
    unit_shim.set_account(known["uid"], known["gid"], known["groups"])
    unit_shim.enter_folder(known["folder"])
    unit_shim.execute(command, environment)


def open_process(pid: object, unit: str) -> int:
    """Return a descriptor of a process in /proc: files relative to it never belong to a later process.

    OSError if the process does not belong to the unit.
    """
    try:
        number = int(str(pid))
        handle = os.open("/proc/{}".format(number), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if node_units.is_in(number, unit) and read_file(handle, "cgroup"):
            return handle
    except (OSError, ValueError):
        pass
    raise OSError("it does not run on this node any more")


def read_file(process: int, name: str) -> str:
    """Return a file of a process as text."""
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=process), "rb") as stream:
        return stream.read().decode("utf-8", "surrogateescape")


def variables_of(process: int) -> Dict[str, str]:
    """Return the initial environment variables of a process."""
    pairs = [item.partition("=") for item in read_file(process, "environ").split("\0") if item]
    return {name: value for name, _, value in pairs}


def set_limits(text: str) -> None:
    """Set the limits that the kernel reports of a process, except those that this account cannot raise."""
    for name, title in LIMITS.items():
        row = re.search(r"^Max {}\s+(\S+)\s+(\S+)".format(title), text, re.MULTILINE)
        if row:
            soft, hard = (-1 if word == "unlimited" else int(word) for word in row.groups())
            try:
                resource.setrlimit(getattr(resource, "RLIMIT_" + name), (soft, hard))
            except (OSError, ValueError):
                continue


def join_groups(process: int, unit: str) -> None:
    """Join the unit's control groups."""
    is_joined = False
    for line in read_file(process, "cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        for folder in group_folders(kinds):
            is_joined = (join_group(folder + path) and unit in path) or is_joined
    if not is_joined:
        raise OSError("its control group cannot be joined")


def group_folders(kinds: str) -> List[str]:
    """Return possible folders of some kinds of control groups: of version 2, or one for each kind."""
    if not kinds:
        return [CGROUPS, CGROUPS + "/unified"]
    return [os.path.join(CGROUPS, kinds.replace("name=", ""))]


def join_group(folder: str) -> bool:
    """Join one control group; return whether that succeeded."""
    try:
        with open(os.path.join(folder, "cgroup.procs"), "w") as stream:
            stream.write("0")
    except OSError:
        return False
    return True


def enter_mounts(process: int) -> None:
    """Enter the mount namespace of a process; nothing is imported afterwards."""
    handle = os.open("ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
    unit_mounts.check(unit_mounts.LIBRARY.setns(handle, unit_mounts.NEW_NAMESPACE), "its mounts are not accessible")
    os.close(handle)


def main() -> None:
    """Execute the command of the arguments (the folder of a unit, then the words) in the instance of the unit."""
    try:
        attach(sys.argv[1], sys.argv[2:])
    except (OSError, ValueError) as problem:
        sys.exit("provision: {}".format(problem))
