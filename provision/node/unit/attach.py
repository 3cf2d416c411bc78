"""Runs a command inside of an instance that is a process of this node.

It is its account's, sees its mounts, and is a part of its unit, with which it ends.
"""

import os
import re
import resource
import sys

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


def attach(place, command):
    """Become the command; OSError where the instance does not run, or something of it cannot be had."""
    known = node_files.read_json(os.path.join(place, "run"))
    unit = os.path.basename(place)
    handle = opened(known.get("pid"), unit)
    environment = variables_of(handle)
    if os.environ.get("TERM"):
        environment.setdefault("TERM", os.environ["TERM"])
    join(handle, unit)
    take_limits(text_of(handle, "limits"))
    see_mounts(handle)
    unit_shim.take_account(known["uid"], known["gid"], known["groups"])
    unit_shim.enter(known["folder"])
    unit_shim.run(command, environment)


def opened(pid, unit):
    """Return a descriptor of what the kernel says of a process: what is read by it is of that process and no later one.

    OSError where the process is not the unit's.
    """
    try:
        handle = os.open("/proc/{}".format(int(pid)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if node_units.is_in(pid, unit) and text_of(handle, "cgroup"):
            return handle
    except (OSError, TypeError, ValueError):
        pass
    raise OSError("nothing of it runs on this node any more")


def text_of(process, name):
    """Return a file of a process as text."""
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=process), "rb") as stream:
        return stream.read().decode("utf-8", "surrogateescape")


def variables_of(process):
    """Return the variables that a process began with."""
    pairs = [item.partition("=") for item in text_of(process, "environ").split("\0") if item]
    return {name: value for name, _, value in pairs}


def take_limits(text):
    """Have the limits that the kernel tells of a process; what this account may not raise stays."""
    for name, title in LIMITS.items():
        row = re.search(r"^Max {}\s+(\S+)\s+(\S+)".format(title), text, re.MULTILINE)
        if row:
            values = [-1 if word == "unlimited" else int(word) for word in row.groups()]
            try:
                resource.setrlimit(getattr(resource, "RLIMIT_" + name), values)
            except (OSError, ValueError):
                continue


def join(process, unit):
    """Become a part of the unit's control groups."""
    joined = False
    for line in text_of(process, "cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        for place in folders(kinds):
            joined = (enter_group(place + path) and unit in path) or joined
    if not joined:
        raise OSError("its control group cannot be entered")


def folders(kinds):
    """Return where the control groups of some kinds may be seen: the newer form, or one folder for each kind."""
    if not kinds:
        return [CGROUPS, CGROUPS + "/unified"]
    return [os.path.join(CGROUPS, kinds.replace("name=", ""))]


def enter_group(folder):
    """Enter one control group; return whether that was done."""
    try:
        with open(os.path.join(folder, "cgroup.procs"), "w") as stream:
            stream.write("0")
    except OSError:
        return False
    return True


def see_mounts(process):
    """See the mounts that a process sees; nothing is imported after that."""
    handle = os.open("ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
    unit_mounts.call(unit_mounts.LIBRARY.setns(handle, unit_mounts.NEW_NAMESPACE), "its mounts cannot be seen")
    os.close(handle)


def main():
    """Become the command of the arguments (the folder of a unit, then the words) in the instance of the unit."""
    try:
        attach(sys.argv[1], sys.argv[2:])
    except (OSError, ValueError) as problem:
        sys.exit("provision: {}".format(problem))
