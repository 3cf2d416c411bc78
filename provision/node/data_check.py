"""Checks data volumes on this node: source of the mount, answer of the server, readable, writable.

Standard input is one line of JSON. The program runs as root, and needs Python 3.6 and nothing else. A process that
accesses a mount with a dead server hangs and cannot be killed: therefore a child process accesses each volume, and is
abandoned after a time limit. Answer: ``{"volumes": {NAME: {...}}}``.
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
    """Check all volumes in parallel."""
    request = json.loads(sys.stdin.readline())
    seconds, user = request.get("seconds", 10), request.get("user") or ""
    children = [(volume, ask(volume, user)) for volume in request["volumes"]]
    deadline = time.monotonic() + seconds
    results = {volume["name"]: answer(child, deadline) for volume, child in children}
    mounts = mounted()
    for volume, _child in children:
        result = results[volume["name"]]
        result["mount"] = mount_of(result.get("real") or volume["path"], mounts)
    print(json.dumps({"volumes": results}))


def ask(volume: Dict[str, Any], user: str) -> Dict[str, int]:
    """Start a child that accesses a volume."""
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
    """Change to the account of the job: on NFS, root may have no rights."""
    numbers = [int(number) for number in re.findall(r"\d+", user)]
    if len(numbers) > 1 and os.geteuid() == 0:
        os.setgroups(numbers[1:])
        os.setgid(numbers[1])
        os.setuid(numbers[0])


def touch(path: str, *, write: bool) -> Dict[str, Any]:
    """List a folder, and create and remove a file in it."""
    result: Dict[str, Any] = {"exists": False, "readable": False, "writable": None, "error": "", "errno": ""}
    try:
        os.stat(path)
        result["exists"] = True
        result["real"] = os.path.realpath(path)
        os.listdir(path)
        result["readable"] = True
        space = os.statvfs(path)
        result["free"], result["size"] = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
        if write:
            result["writable"] = False
            write_in(path)
            result["writable"] = True
    except OSError as error:
        result["error"], result["errno"] = os.strerror(error.errno or 0), errno.errorcode.get(error.errno or 0, "")
    return result


def write_in(path: str) -> None:
    """Create and remove a file."""
    name = os.path.join(path, ".provision-check-%s-%d" % (os.uname().nodename, os.getpid()))
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(handle, b"x")
        os.fsync(handle)
    finally:
        os.close(handle)
        os.unlink(name)


def answer(child: Dict[str, int], deadline: float) -> Dict[str, Any]:
    """Return the result of a child; one without an answer in time is killed and abandoned."""
    if not select.select([child["pipe"]], [], [], max(0.0, deadline - time.monotonic()))[0]:
        os.kill(child["pid"], signal.SIGKILL)
        return {"hung": True}
    text = os.read(child["pipe"], READ_BYTES)
    os.waitpid(child["pid"], 0)
    return json.loads(text.decode()) if text else {"error": "it could not be checked"}


def mounted() -> List[Dict[str, str]]:
    """Return the mounts of /proc/self/mountinfo, which accesses no file system."""
    mounts = []
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        for line in table:
            before, _, after = line.partition(" - ")
            left, right = before.split(), after.split()
            place, device = plain(left[4]), left[2]
            mounts.append({"at": place, "device": device, "type": right[0], "source": plain(right[1]), "how": left[5]})
    return mounts


def mount_of(path: str, mounts: List[Dict[str, str]]) -> Dict[str, str]:
    """Return the mount of a path: the last one with the longest mount point."""
    inside = [mount for mount in mounts if path == mount["at"] or path.startswith(mount["at"].rstrip("/") + "/")]
    best: Dict[str, str] = {}
    for mount in inside:
        if len(mount["at"]) >= len(best.get("at", "")):
            best = mount
    return best


def plain(text: str) -> str:
    """Replace the kernel's octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape.group(1), 8)), text)
