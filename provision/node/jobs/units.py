"""Instances that are processes of this node: each is a transient unit of systemd, whose end takes all of it along.

What is known of a unit is in a folder of `UNITS`, which is gone after a reboot, as units are: `about` (whose it is),
`lock` (held by its shim for as long as that lives), `told` (what the shim is to start, with secrets, until it has read
it), `run` (what runs) and `end` (how it ended).
"""

import os
import re
import signal
import time

from provision.node.docker import programs_below
from provision.node.files import PROC, is_locked, names_in, program, read_json, read_text, send_signal
from provision.node.jobs.records import RUN

UNITS = os.path.join(RUN, "units")
UNIT = re.compile(r"provision-rank-[A-Za-z0-9_.-]+\.service")
KILL_SECONDS = 5
DRIVER = PROC + "/driver/nvidia/gpus"
UVM = "nvidia-uvm"
NVIDIA = "195"  # the major number of GPUs, and of /dev/nvidiactl and /dev/nvidia-modeset


def unit_of(name, attempt):
    """Return the name of the unit that the keeper is told to make under a name."""
    return "provision-rank-{}-{}.service".format(name, attempt)


def place_of(unit):
    """Return the folder with what is known of a unit."""
    return os.path.join(UNITS, unit)


def about(unit):
    """Return whose a unit is: "job", "id", "attempt", "instance", and the paths that it mounts upon."""
    return read_json(os.path.join(place_of(unit), "about"))


def job_units(key="", value=None):
    """Return the units of jobs, in the form in which docker's engine lists containers.

    Args:
        key: ``job`` or ``id``; those of which it is `value`; all without it.
        value: see `key`.
    """
    found = []
    for unit in names_in(UNITS):
        known = about(unit) if UNIT.match(unit) else {}
        if known and (not key or str(known.get(key)) == str(value)):
            labels = {"provision." + name: str(known.get(name, "")) for name in ("job", "id", "attempt", "instance")}
            found.append({"Id": unit, "Labels": labels, "State": "running" if is_running(unit) else "exited"})
    return found


def has_shim(unit):
    """Return whether the unit's first program lives."""
    return is_locked(os.path.join(place_of(unit), "lock"))


def is_running(unit):
    """Return whether anything of a unit runs."""
    return has_shim(unit) or bool(processes_of(unit))


def processes_of(unit):
    """Return the living processes of a unit, by what the kernel says of each."""
    pids = [item for item in names_in(PROC) if item.isdigit()]
    return [int(pid) for pid in pids if unit in read_text("{}/{}/cgroup".format(PROC, pid)) and is_in(pid, unit)]


def is_in(pid, unit):
    """Return whether a process is in a unit's control group, or in one below it, and is no zombie."""
    paths = read_text("{}/{}/cgroup".format(PROC, pid)).splitlines()
    state = read_text("{}/{}/stat".format(PROC, pid)).rpartition(")")[2].split()[:1]
    return state not in ([], ["Z"], ["X"]) and any(unit in path.split("/") for path in paths)


def terminate(unit):
    """Send SIGTERM to what a unit was started for, not to the shells around it; return whom it was sent to."""
    first = int(read_json(os.path.join(place_of(unit), "run")).get("pid") or 0)
    pids = programs_below(first) if first and has_shim(unit) else []
    for pid in pids:
        send(pid, signal.SIGTERM, unit)
    return pids


def terminate_all(unit):
    """Send SIGTERM to a unit's own first process: a shell in a loop outlives what it started."""
    first = int(read_json(os.path.join(place_of(unit), "run")).get("pid") or 0)
    if first and has_shim(unit):
        send(first, signal.SIGTERM, unit)


def kill(unit):
    """End all processes of a unit but its shim, which then ends by itself; return those that live on."""
    shim = int(read_json(os.path.join(place_of(unit), "run")).get("shim") or 0)
    spared = {shim} if has_shim(unit) else set()
    left = kill_all(unit, spared)
    if left:
        program(["systemctl", "kill", "--signal=KILL", unit], 20)
    return left


def kill_all(unit, spared=()):
    """End all processes of a unit but some; return those that live on."""
    deadline = time.monotonic() + KILL_SECONDS
    while True:
        left = [pid for pid in processes_of(unit) if pid not in spared]
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            send(pid, signal.SIGKILL, unit)
        time.sleep(0.01)


def send(pid, number, unit):
    """Send a signal to a process of a unit that may be gone."""
    send_signal(pid, number, lambda: is_in(pid, unit))


# GPUs


def device_words(uuids):
    """Return words for systemd-run that keep a unit off all GPUs but some; everything else of the node stays.

    None where that cannot be said: the driver tells of no GPU, or has not all its parts loaded (what comes later would
    be denied), or some are instances of MIG, of which it does not tell here whose they are.
    """
    minors, kinds = gpu_minors(), char_kinds()
    if not minors or UVM not in kinds or any(uuid not in minors for uuid in uuids):
        return []
    own = ["/dev/nvidia{}".format(minors[uuid]) for uuid in sorted(set(uuids))]
    shared = [path for path in ("/dev/nvidiactl", "/dev/nvidia-modeset") if os.path.exists(path)]
    devices = [*shared, *own, *("char-" + kind for kind in kinds), "block-*"]
    return ["--property=DevicePolicy=closed", *("--property=DeviceAllow={} rwm".format(item) for item in devices)]


def gpu_minors():
    """Return UUID -> the number in the name of its device file, as the driver says it."""
    found = {}
    for item in names_in(DRIVER):
        told = read_text(os.path.join(DRIVER, item, "information"))
        lines = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
        uuid, minor = lines.get("GPU UUID", "").strip(), lines.get("Device Minor", "").strip()
        if uuid and minor.isdigit():
            found[uuid] = minor
    return found


def char_kinds():
    """Return the kinds of character devices that the kernel knows, but for those of GPUs."""
    characters = read_text(PROC + "/devices").partition("Block devices:")[0]
    rows = [line.split() for line in characters.splitlines()]
    return sorted({row[1] for row in rows if len(row) == 2 and row[0].isdigit() and row[0] != NVIDIA})
