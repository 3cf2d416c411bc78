"""The lock of a node, the record of its holder, and the history of applies.

It runs on the node with ``holder.py``, and needs Python 3.6 or newer.
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
RECORDED = 200
"""Maximum number of recorded applies."""
SILENT = "its lock holder ended without a record: a power cut, a restart, or it was killed"


class Held(Exception):
    """Another process holds the lock."""

    def __init__(self, holder: Optional[Dict[str, Any]]) -> None:
        super().__init__()
        self.holder = holder


def now() -> str:
    """Return the time in the format of the history."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def words(error: OSError) -> str:
    """Return the file and the error."""
    return "{}: {}".format(error.filename, error.strerror) if error.filename else str(error.strerror)


def lock_path(folders: List[str]) -> Tuple[str, bool]:
    """Return the path of the lock on this node, and whether it is the usual one."""
    for folder in folders:
        if os.path.isdir(folder):
            return os.path.join(folder, NAME), folder == folders[0]
    os.makedirs(folders[-1], 0o755, exist_ok=True)
    return os.path.join(folders[-1], NAME), False


def take(path: str) -> int:
    """Return the open, locked file; it stays locked until this process ends.

    Raises:
        Held: another process holds it. A process that only checks it holds it for a moment; this function waits for it.
    """
    end = time.monotonic() + 2
    while True:
        descriptor = open_lock(path)
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


def open_lock(path: str) -> int:
    """Open the lock file. All users can write to /run/lock: a file of another user is not a lock, and is removed."""
    for _ in range(10):
        try:
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
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
    raise OSError(errno.EBUSY, "another user repeatedly replaces it", path)


def clear(path: str) -> None:
    """Remove a file of another user; a folder, which may not be empty, is renamed."""
    try:
        os.unlink(path)
    except IsADirectoryError:
        os.rename(path, "{}.not-ours-{}".format(path, os.urandom(8).hex()))


def is_held(path: str) -> bool:
    """Return whether a process holds the lock."""
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
    """Return the record of the lock holder; it may be an earlier one's."""
    try:
        descriptor = os.open(path + ".holder", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            if os.fstat(descriptor).st_uid != os.geteuid():
                return None
            document = json.loads(stream.read().decode())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def alive(holder: Optional[Dict[str, Any]]) -> bool:
    """Return whether the recorded process of a lock holder is alive."""
    process = (holder or {}).get("keeper") or {}
    return bool(process.get("started")) and started(process.get("pid")) == process["started"]


def started(pid: Any) -> str:
    """Return what distinguishes a process from a later one with its number; empty if it has ended."""
    try:
        with open("/proc/{}/stat".format(int(pid)), "rb") as stream:
            parts = stream.read().rpartition(b")")[2].split()
        with open("/proc/sys/kernel/random/boot_id") as stream_of_boot:
            boot = stream_of_boot.read().strip()
    except (OSError, ValueError, TypeError):
        return ""
    return "" if parts[0] in (b"Z", b"X") else "{} {}".format(parts[19].decode(), boot)


def working(marks: List[str]) -> List[str]:
    """Return descriptions of running tasks of Ansible, without arguments; at most five."""
    descriptions = []
    for folder in glob.glob("/proc/[0-9]*"):
        text = read_file(folder + "/cmdline").rstrip("\0")
        inside = any(mark in text for mark in marks[:-1])
        if (inside or text.endswith(marks[-1])) and int(folder[6:]) != os.getpid() and is_operators(folder):
            descriptions.append(
                "process {} ({} of {})".format(folder[6:], read_file(folder + "/comm").strip(), owner(folder))
            )
    return descriptions[:5]


def is_operators(folder: str) -> bool:
    """Return whether a process belongs to this account, or to the one that called sudo, and is outside of containers.

    Other accounts, and root in a container, can choose any arguments for their processes; sudo runs as root before it
    asks for a password.
    """
    accounts = {str(os.getuid()), os.environ.get("SUDO_UID", "")}
    fields = dict(line.split(":", 1) for line in read_file(folder + "/status").splitlines() if ":" in line)
    if fields.get("Uid", "").split()[:1] not in [[account] for account in accounts]:
        return False
    try:
        if os.stat(folder + "/exe").st_mode & stat.S_ISUID:
            return False
        return os.readlink(folder + "/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return False  # it has ended


def owner(folder: str) -> str:
    """Return the owner of a file."""
    try:
        number = os.stat(folder).st_uid
        return pwd.getpwuid(number).pw_name
    except OSError:
        return "nobody"
    except KeyError:
        return "uid {}".format(number)


def read_file(path: str) -> str:
    """Return a file of /proc, empty if its process has ended."""
    try:
        with open(path, "rb") as stream:
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def write_whole(path: str, text: str) -> None:
    """Replace a file that only root can read, atomically."""
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
    """Add one line to the history; a power cut may have left an incomplete line before it."""
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        line = (b"\n" if is_torn else b"") + json.dumps(record).encode() + b"\n"
        written = os.write(descriptor, line)
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path)
    finally:
        os.close(descriptor)
    if written < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def entries(path: str) -> Tuple[List[Dict[str, Any]], int]:
    """Return the applies of a history, oldest first, and its number of lines; an apply has several lines."""
    applies: Dict[str, Dict[str, Any]] = {}
    lines = 0
    try:
        with open(path, "rb") as stream:
            for line in stream:
                lines += 1
                try:
                    record = json.loads(line.decode())
                    applies.setdefault(str(record["id"]), {}).update(record)
                except (ValueError, KeyError, TypeError):
                    continue
    except FileNotFoundError:
        pass
    return list(applies.values())[-RECORDED:], lines


def settle(path: str) -> None:
    """Shorten the history, and record applies without a result as died; only the lock holder may call this."""
    applies, lines = entries(path)
    if lines > 2 * RECORDED:
        write_whole(path, "".join(json.dumps(record) + "\n" for record in applies))
    for record in applies:
        if record.get("status") == "running":
            append(path, {"id": record["id"], "status": "died", "message": SILENT})
