"""Looks whether data volumes are usable on this node: mounted from where they should be, alive, readable, writable.

It arrives over SSH on standard input as root, followed by one line of JSON, and needs Python 3.6 and nothing else. A
mount whose server is dead hangs whoever touches it, for ever and without a way to end him: so each volume is touched by
a child of its own, which is given up after a while. Answer: ``{"volumes": {NAME: {...}}}``.
"""

import errno
import json
import os
import re
import select
import signal
import sys
import time
from typing import Any, Dict, List

READ_BYTES = 1 << 20


def main() -> None:
    """Look at all volumes at once."""
    request = json.loads(sys.stdin.readline())
    seconds, user = request.get("seconds", 10), request.get("user") or ""
    children = [(volume, ask(volume, user)) for volume in request["volumes"]]
    deadline = time.monotonic() + seconds
    found = {volume["name"]: answer(child, deadline) for volume, child in children}
    mounts = mounted()
    for volume, _child in children:
        about = found[volume["name"]]
        about["mount"] = mount_of(about.get("real") or volume["path"], mounts)
    print(json.dumps({"volumes": found}))


def ask(volume: Dict[str, Any], user: str) -> Dict[str, int]:
    """Start a child that touches a volume."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return {"pid": child, "pipe": reader}
    try:
        os.close(reader)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):  # a child that hangs would keep the session open
            os.dup2(nothing, number)
        become(user)
        os.write(writer, json.dumps(touch(volume["path"], write=not volume.get("read_only"))).encode())
    finally:
        os._exit(0)


def become(user: str) -> None:
    """Be the user that the job runs as: on NFS root may be nobody."""
    numbers = [int(number) for number in re.findall(r"\d+", user)]
    if len(numbers) > 1 and os.geteuid() == 0:
        os.setgroups(numbers[1:])
        os.setgid(numbers[1])
        os.setuid(numbers[0])


def touch(path: str, *, write: bool) -> Dict[str, Any]:
    """List a folder, and make and remove a file in it."""
    found = {"exists": False, "readable": False, "writable": None, "error": "", "errno": ""}  # type: Dict[str, Any]
    try:
        os.stat(path)
        found["exists"] = True
        found["real"] = os.path.realpath(path)
        os.listdir(path)
        found["readable"] = True
        room = os.statvfs(path)
        found["free"], found["size"] = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
        if write:
            found["writable"] = False
            write_in(path)
            found["writable"] = True
    except OSError as error:
        found["error"], found["errno"] = os.strerror(error.errno or 0), errno.errorcode.get(error.errno or 0, "")
    return found


def write_in(path: str) -> None:
    """Make a file, and leave none."""
    name = os.path.join(path, ".provision-check-%s-%d" % (os.uname().nodename, os.getpid()))
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(handle, b"x")
        os.fsync(handle)
    finally:
        os.close(handle)
        os.unlink(name)


def answer(child: Dict[str, int], deadline: float) -> Dict[str, Any]:
    """Return what a child found; one that says nothing in time is left to the kernel."""
    if not select.select([child["pipe"]], [], [], max(0.0, deadline - time.monotonic()))[0]:
        os.kill(child["pid"], signal.SIGKILL)
        return {"hung": True}
    text = os.read(child["pipe"], READ_BYTES)
    os.waitpid(child["pid"], 0)
    return json.loads(text.decode()) if text else {"error": "it could not be looked at"}


def mounted() -> List[Dict[str, str]]:
    """Read /proc/self/mountinfo, which touches no file system."""
    found = []
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        for line in table:
            before, _, after = line.partition(" - ")
            left, right = before.split(), after.split()
            place, device = plain(left[4]), left[2]
            found.append({"at": place, "device": device, "type": right[0], "source": plain(right[1]), "how": left[5]})
    return found


def mount_of(path: str, mounts: List[Dict[str, str]]) -> Dict[str, str]:
    """Return the mount that a path lies on: of the longest place, the last one."""
    inside = [mount for mount in mounts if path == mount["at"] or path.startswith(mount["at"].rstrip("/") + "/")]
    best = {}  # type: Dict[str, str]
    for mount in inside:
        if len(mount["at"]) >= len(best.get("at", "")):
            best = mount
    return best


def plain(text: str) -> str:
    """Undo the kernel's way of writing spaces."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)
