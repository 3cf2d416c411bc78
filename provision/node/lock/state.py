"""What a node's lock and history are made of: the locked file, who wrote themselves beside it, lines of applies.

It runs on the node with ``holder.py``, in whatever Python there is from 3.6 on.
"""

import errno
import fcntl
import glob
import json
import os
import pwd
import stat
import time
from typing import Any, Dict, List, Optional, Tuple

NAME = "provision.lock"
KEPT = 200
"""As many applies are remembered."""
SILENT = "its keeper went without a word: a power cut, a restart, or it was killed"


class Held(Exception):
    """Another keeper has the lock."""

    def __init__(self, holder: Optional[Dict[str, Any]]) -> None:
        super().__init__()
        self.holder = holder


def now() -> str:
    """Return the time as it stands in the history."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def words(error: OSError) -> str:
    """Return what went wrong with which file."""
    return "{}: {}".format(error.filename, error.strerror) if error.filename else str(error.strerror)


def lock_path(folders: List[str]) -> Tuple[str, bool]:
    """Return where the lock is on this node, and whether that is the usual place."""
    for folder in folders:
        if os.path.isdir(folder):
            return os.path.join(folder, NAME), folder == folders[0]
    os.makedirs(folders[-1], 0o755, exist_ok=True)
    return os.path.join(folders[-1], NAME), False


def take(path: str) -> int:
    """Return the open, locked file; it stays locked until this process ends.

    Raises:
        Held: another one has it. Who only looks whether it is free has it for a moment; such a one is waited for.
    """
    end = time.monotonic() + 2
    while True:
        descriptor = opened(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path) and os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except BlockingIOError:
            holder = read_holder(path)
            if alive(holder) or time.monotonic() > end:
                raise Held(holder if alive(holder) else None)
            time.sleep(0.05)
        os.close(descriptor)


def opened(path: str) -> int:
    """Open the lock file. /run/lock is everybody's: what is there of another user is no lock, and goes."""
    for _ in range(10):
        try:
            found = os.lstat(path)
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
                os.fchmod(descriptor, 0o600)
                return descriptor
            clear(path)
        except FileNotFoundError:
            pass
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            pass
    raise OSError(errno.EBUSY, "another user puts a file in its place again and again", path)


def clear(path: str) -> None:
    """Take away what has our place; a folder, which may be another user's and full, goes aside."""
    try:
        os.unlink(path)
    except IsADirectoryError:
        os.rename(path, "{}.not-ours-{}".format(path, os.urandom(8).hex()))


def is_held(path: str) -> bool:
    """Return whether somebody has the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return False
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_holder(path: str) -> Optional[Dict[str, Any]]:
    """Return what the holder of the lock wrote about itself; that may be an earlier one's."""
    try:
        descriptor = os.open(path + ".holder", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            if os.fstat(descriptor).st_uid != os.geteuid():
                return None
            found = json.loads(stream.read().decode())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def alive(holder: Optional[Dict[str, Any]]) -> bool:
    """Return whether the keeper that `holder` names is still the process of that number."""
    keeper = (holder or {}).get("keeper") or {}
    return bool(keeper.get("started")) and started(keeper.get("pid")) == keeper["started"]


def started(pid: Any) -> str:
    """Return what tells a process from a later one of the same number; empty when it is gone."""
    try:
        with open("/proc/{}/stat".format(int(pid)), "rb") as stream:
            parts = stream.read().rpartition(b")")[2].split()
        with open("/proc/sys/kernel/random/boot_id") as stream_of_boot:
            boot = stream_of_boot.read().strip()
    except (OSError, ValueError, TypeError):
        return ""
    return "" if parts[0] in (b"Z", b"X") else "{} {}".format(parts[19].decode(), boot)


def working(marks: List[str]) -> List[str]:
    """Return the processes that Ansible runs here, in words and without their arguments; at most five."""
    found = []
    for folder in glob.glob("/proc/[0-9]*"):
        text = read_file(folder + "/cmdline").rstrip("\0")
        inside = any(mark in text for mark in marks[:-1])
        if (inside or text.endswith(marks[-1])) and int(folder[6:]) != os.getpid() and is_operators(folder):
            found.append("process {} ({} of {})".format(folder[6:], read_file(folder + "/comm").strip(), owner(folder)))
    return found[:5]


def is_operators(folder: str) -> bool:
    """Return whether a process is of this process's account, or of the one that called sudo, and outside of containers.

    Other accounts, and root in a container, choose the arguments of their processes as they like; sudo is root's before
    it has asked for a password.
    """
    accounts = {str(os.getuid()), os.environ.get("SUDO_UID", "")}
    found = dict(line.split(":", 1) for line in read_file(folder + "/status").splitlines() if ":" in line)
    if found.get("Uid", "").split()[:1] not in [[account] for account in accounts]:
        return False
    try:
        if os.stat(folder + "/exe").st_mode & stat.S_ISUID:
            return False
        return os.readlink(folder + "/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return False  # it has ended


def owner(folder: str) -> str:
    """Return whose a file is."""
    try:
        number = os.stat(folder).st_uid
        return pwd.getpwuid(number).pw_name
    except OSError:
        return "nobody"
    except KeyError:
        return "uid {}".format(number)


def read_file(path: str) -> str:
    """Return a file of /proc, empty when its process is gone."""
    try:
        with open(path, "rb") as stream:
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def write_whole(path: str, text: str) -> None:
    """Replace a file that root alone may read: all of it, or nothing."""
    draft = path + ".new"
    try:
        clear(draft)
    except FileNotFoundError:
        pass
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    try:
        os.rename(draft, path)
    except IsADirectoryError:
        clear(path)
        os.rename(draft, path)


def append(path: str, record: Dict[str, Any]) -> None:
    """Add one line to the history, on a line of its own: a power cut may have left half a line before it."""
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        line = (b"\n" if torn else b"") + json.dumps(record).encode() + b"\n"
        written = os.write(descriptor, line)
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path)
    finally:
        os.close(descriptor)
    if written < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def entries(path: str) -> Tuple[List[Dict[str, Any]], int]:
    """Return the applies of a history, oldest first, and the lines they stand on; each later line adds to its apply."""
    found = {}  # type: Dict[str, Dict[str, Any]]
    lines = 0
    try:
        with open(path, "rb") as stream:
            for line in stream:
                lines += 1
                try:
                    record = json.loads(line.decode())
                    found.setdefault(str(record["id"]), {}).update(record)
                except (ValueError, KeyError, TypeError):
                    continue
    except FileNotFoundError:
        pass
    return list(found.values())[-KEPT:], lines


def settle(path: str) -> None:
    """Shorten the history, and say of each apply that never ended that it did not; only the lock's holder may."""
    found, lines = entries(path)
    if lines > 2 * KEPT:
        write_whole(path, "".join(json.dumps(record) + "\n" for record in found))
    for record in found:
        if record.get("status") == "running":
            append(path, {"id": record["id"], "status": "died", "message": SILENT})
