"""Runs a command inside of an instance that is a process of this node. A part of unit_shim.py.

It is its account's, sees its mounts, and is a part of its unit, with which it ends.
"""

import os
import re
import resource

import node_files
import node_units
import unit_shim

CGROUPS = "/sys/fs/cgroup"
NAMESPACE = 0x00020000  # CLONE_NEWNS
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
    pid = known.get("pid")
    unit = os.path.basename(place)
    if not pid or not node_units.is_in(pid, unit):
        raise OSError("nothing of it runs on this node any more")
    environment = variables_of(pid)
    if os.environ.get("TERM"):
        environment.setdefault("TERM", os.environ["TERM"])
    limits = node_files.read_text("/proc/{}/limits".format(pid))
    join(pid, unit)
    see_mounts(pid)
    take_limits(limits)
    unit_shim.take_account(known["uid"], known["gid"], known["groups"])
    unit_shim.enter(known["folder"])
    unit_shim.run(command, environment)


def variables_of(pid):
    """Return the variables that a process began with."""
    with open("/proc/{}/environ".format(pid), "rb") as stream:
        pairs = [item.partition(b"=") for item in stream.read().split(b"\0") if item]
    return {os.fsdecode(name): value.decode("utf-8", "surrogateescape") for name, _, value in pairs}


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


def join(pid, unit):
    """Become a part of the unit's control groups."""
    joined = False
    for line in node_files.read_text("/proc/{}/cgroup".format(pid)).splitlines():
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


def see_mounts(pid):
    """See the mounts that a process sees."""
    import ctypes

    handle = os.open("/proc/{}/ns/mnt".format(pid), os.O_RDONLY | os.O_CLOEXEC)
    if ctypes.CDLL(None, use_errno=True).setns(handle, NAMESPACE):
        number = ctypes.get_errno()
        raise OSError(number, "its mounts cannot be seen: {}".format(os.strerror(number)))
    os.close(handle)
