"""Instances that are processes of this node: each is a transient systemd unit, which ends with all its processes.

A folder below `UNITS` describes a unit until the next reboot: `about` (its owner), `lock` (held by its shim while that
lives), `told` (the configuration of the shim with secrets, until the shim has read it), `run` (what runs) and `end`
(how it ended).
"""

import os
import re
import signal
import time
from typing import Collection, Dict, List, Union

from provision.node.docker import programs_below
from provision.node.files import PROC, Record, is_locked, names_in, program, read_json, read_text, send_signal
from provision.node.jobs.records import RUN

UNITS = os.path.join(RUN, "units")
UNIT = re.compile(r"provision-rank-[A-Za-z0-9_.-]+\.service")
KILL_SECONDS = 5
DRIVER = PROC + "/driver/nvidia/gpus"
UVM = "nvidia-uvm"
NVIDIA = "195"  # the major number of GPUs, and of /dev/nvidiactl and /dev/nvidia-modeset


def unit_of(name: str, attempt: int) -> str:
    """Return the name of the unit of a runtime, whose name is in the configuration of the job supervisor."""
    return "provision-rank-{}-{}.service".format(name, attempt)


def unit_folder(unit: str) -> str:
    """Return the folder that describes a unit."""
    return os.path.join(UNITS, unit)


def unit_record(unit: str) -> Record:
    """Return the owner of a unit ("job", "id", "attempt", "instance") and the mount points that it uses ("targets")."""
    return read_json(os.path.join(unit_folder(unit), "about"))


def job_units(key: str = "", value: str = "") -> List[Record]:
    """Return the units of jobs, in the form in which the Docker engine lists containers."""
    units = []
    for unit in names_in(UNITS):
        record = unit_record(unit) if UNIT.match(unit) else {}
        if record and (not key or str(record.get(key)) == value):
            labels = {"provision." + name: str(record.get(name, "")) for name in ("job", "id", "attempt", "instance")}
            units.append({"Id": unit, "Labels": labels, "State": "running" if is_running(unit) else "exited"})
    return units


def has_shim(unit: str) -> bool:
    """Return whether the shim of a unit lives."""
    return is_locked(os.path.join(unit_folder(unit), "lock"))


def is_running(unit: str) -> bool:
    """Return whether a process of a unit runs."""
    return has_shim(unit) or bool(processes_of(unit))


def processes_of(unit: str) -> List[int]:
    """Return the living processes of a unit, by their control groups."""
    pids = [item for item in names_in(PROC) if item.isdigit()]
    return [int(pid) for pid in pids if unit in read_text("{}/{}/cgroup".format(PROC, pid)) and is_in(pid, unit)]


def is_in(pid: Union[int, str], unit: str) -> bool:
    """Return whether a process is in a unit's control group, or in one below it, and is no zombie."""
    paths = read_text("{}/{}/cgroup".format(PROC, pid)).splitlines()
    state = read_text("{}/{}/stat".format(PROC, pid)).rpartition(")")[2].split()[:1]
    return state not in ([], ["Z"], ["X"]) and any(unit in path.split("/") for path in paths)


def terminate(unit: str) -> List[int]:
    """Send SIGTERM to the programs that a unit was started for, not to shells around them; return their process IDs."""
    first = first_process(unit)
    pids = list(programs_below(first)) if first else []
    for pid in pids:
        send(pid, signal.SIGTERM, unit)
    return pids


def terminate_all(unit: str) -> None:
    """Send SIGTERM to the first process of a unit: a shell with a loop survives its programs."""
    first = first_process(unit)
    if first:
        send(first, signal.SIGTERM, unit)


def first_process(unit: str) -> int:
    """Return the process ID of the program that the shim of a unit started, 0 if there is none."""
    first = int(read_json(os.path.join(unit_folder(unit), "run")).get("pid") or 0)
    return first if has_shim(unit) else 0


def kill(unit: str) -> List[int]:
    """Kill all processes of a unit except its shim, which then ends by itself; return the survivors."""
    shim = int(read_json(os.path.join(unit_folder(unit), "run")).get("shim") or 0)
    left = kill_all(unit, {shim} if has_shim(unit) else ())
    if left:
        program(["systemctl", "kill", "--signal=KILL", unit], 20)
    return left


def kill_all(unit: str, spared: Collection[int] = ()) -> List[int]:
    """Kill the processes of a unit except some; return the survivors."""
    deadline = time.monotonic() + KILL_SECONDS
    while True:
        left = [pid for pid in processes_of(unit) if pid not in spared]
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            send(pid, signal.SIGKILL, unit)
        time.sleep(0.01)


def send(pid: int, number: int, unit: str) -> None:
    """Send a signal to a process if it is still in the unit."""
    send_signal(pid, number, lambda: is_in(pid, unit))


# GPUs


def device_words(uuids: Collection[str]) -> List[str]:
    """Return arguments of systemd-run that give a unit access to no other GPUs than these, and to all other devices.

    Return none if the driver lists no GPU, or a GPU is a MIG instance, whose owner the driver does not report here, or
    a part of the driver is not loaded: access to its devices would be denied later.
    """
    minors, kinds = gpu_minors(), char_kinds()
    if not minors or UVM not in kinds or any(uuid not in minors for uuid in uuids):
        return []
    own = ["/dev/nvidia{}".format(minors[uuid]) for uuid in sorted(set(uuids))]
    shared = [path for path in ("/dev/nvidiactl", "/dev/nvidia-modeset") if os.path.exists(path)]
    devices = [*shared, *own, *("char-" + kind for kind in kinds), "block-*"]
    return ["--property=DevicePolicy=closed", *("--property=DeviceAllow={} rwm".format(item) for item in devices)]


def gpu_minors() -> Dict[str, str]:
    """Return the number in the name of each GPU's device file by UUID, as the driver lists them."""
    minors = {}
    for item in names_in(DRIVER):
        information = read_text(os.path.join(DRIVER, item, "information"))
        lines = dict(line.split(":", 1) for line in information.splitlines() if ":" in line)
        uuid, minor = lines.get("GPU UUID", "").strip(), lines.get("Device Minor", "").strip()
        if uuid and minor.isdigit():
            minors[uuid] = minor
    return minors


def char_kinds() -> List[str]:
    """Return the kinds of character devices that the kernel has, without those of GPUs."""
    characters = read_text(PROC + "/devices").partition("Block devices:")[0]
    rows = [line.split() for line in characters.splitlines()]
    return sorted({row[1] for row in rows if len(row) == 2 and row[0].isdigit() and row[0] != NVIDIA})
