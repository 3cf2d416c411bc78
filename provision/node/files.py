"""Files, programs, processes and the clock of this node. Python 3.6 or newer.

Modules that few callers need are imported in functions, because each request starts Python anew.
"""

import fcntl
import json
import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

if TYPE_CHECKING:
    import subprocess

PROC = os.environ.get("PROVISION_PROC") or "/proc"
LOCK_SECONDS = 30
read_ahead = b""
"""The bytes of standard input that were read after the request's line."""
REMOVE_SECONDS = 600

Record = Dict[str, Any]
"""A JSON object."""


class Refused(Exception):
    """The request cannot be carried out; the text is for a person."""

    def __init__(self, message: str, remedy: str = "", output: str = "") -> None:
        super().__init__(message)
        self.answer: Dict[str, Dict[str, str]] = {"error": {"message": message, "remedy": remedy, "output": output}}


# Files


def read_text(path: str) -> str:
    """Return a file as text, empty if it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # `open` takes twice as long for a small file
    except OSError:
        return ""
    try:
        return b"".join(iter(lambda: os.read(handle, 1 << 16), b"")).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(handle)


def read_json(path: str) -> Record:
    """Return a file's JSON object, an empty one if there is none."""
    try:
        document = json.loads(read_text(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def write_file(path: str, content: Union[str, bytes], mode: int = 0o600, *, durable: bool = True) -> None:
    """Write a file atomically: readers see the file before or after the change.

    Unless it is `durable`, a power failure may undo the change, and this does not wait for the disk.
    """
    new = "{}.{}.new".format(path, os.getpid())
    remove(new)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(handle, mode)
            stream.write(content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)
            stream.flush()
            if durable:
                os.fsync(handle)
        os.rename(new, path)
    except BaseException:
        remove(new)
        raise


def write_json(path: str, value: Mapping[str, Any], mode: int = 0o600, *, durable: bool = True) -> None:
    """Write a JSON object atomically."""
    write_file(path, json.dumps(value, sort_keys=True) + "\n", mode, durable=durable)


def remove(path: str) -> bool:
    """Remove a file; return whether it existed."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def names_in(folder: str) -> List[str]:
    """Return the names in a folder, none if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def remove_tree(path: str) -> None:
    """Remove a folder and its contents, with `rm` because jobs may nest folders deeper than Python can recurse."""
    if os.path.lexists(path):
        program(["/bin/rm", "-rf", "--", path], REMOVE_SECONDS)


def locked_within(handle: int, seconds: float) -> bool:
    """Lock an open file; return False if another process holds the lock for so long."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def is_locked(path: str) -> bool:
    """Return whether a process holds the exclusive lock of a file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def copy_input(stream: BinaryIO, size: int) -> int:
    """Copy so many bytes of standard input after the request's line; return how many are missing."""
    piece = read_ahead
    while size:
        piece = (piece or os.read(0, 1 << 20))[:size]
        if not piece:
            break
        stream.write(piece)
        size, piece = size - len(piece), b""
    return size


# Programs


def program(argv: Sequence[str], seconds: float, env: Optional[Mapping[str, str]] = None) -> Tuple[int, str, str]:
    """Run a program; return its exit code, output and errors. After a timeout it is killed, without waiting for it."""
    import subprocess

    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=dict(os.environ, LC_ALL="C", **(env or {})),
        )
    except OSError as problem:
        return 127, "", "{}: {}".format(argv[0], problem.strerror)
    return result_of(child, argv[0], time.monotonic() + seconds)


def result_of(child: "subprocess.Popen[bytes]", title: str, deadline: float) -> Tuple[int, str, str]:
    """Return exit code, output and errors of a started program; kill it after the deadline."""
    import subprocess

    try:
        out, err = child.communicate(timeout=max(deadline - time.monotonic(), 0.05))
    except subprocess.TimeoutExpired:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except OSError:
            pass
        return 124, "", "{} did not end in time".format(title)
    return child.returncode, out.decode(errors="replace"), err.decode(errors="replace").strip()


# Processes


def start_of(pid: Union[int, str]) -> int:
    """Return the start time of a process in clock ticks since boot, 0 if there is no such process.

    It distinguishes a process from a later one with the same number.
    """
    words = read_text("{}/{}/stat".format(PROC, pid)).rpartition(")")[2].split()
    return int(words[19]) if len(words) > 19 and words[19].isdigit() else 0


def send_signal(pid: int, number: int, is_same: Callable[[], bool]) -> None:
    """Send a signal to a process, and to no later one with the same number.

    Args:
        pid: the process.
        number: the signal.
        is_same: returns whether the process is the intended one. It is called after a pidfd (Linux 5.3 and
            Python 3.9) is opened.
    """
    handle = None
    try:
        handle = os.pidfd_open(pid)  # novermin
    except (AttributeError, OSError):
        pass
    try:
        if not is_same():
            return
        if handle is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)  # novermin
    except OSError:
        pass
    finally:
        if handle is not None:
            os.close(handle)


# Boot and time


def boot_id() -> str:
    """Return an identifier of this boot of the node, or of this start of a node that is a container."""
    return "{}.{}".format(read_text(PROC + "/sys/kernel/random/boot_id").strip(), start_of(1))


def boot_time() -> int:
    """Return when the node was booted, in seconds since the epoch."""
    match = re.search(r"^btime (\d+)", read_text(PROC + "/stat"), re.MULTILINE)
    return int(match.group(1)) + start_of(1) // os.sysconf("SC_CLK_TCK") if match else 0


def stamp(seconds: float) -> str:
    """Return a time in the format of the logs."""
    whole = int(seconds // 1)
    micro = min(int((seconds - whole) * 1e6), 999999)
    return "{}.{:06d}Z".format(time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)), micro)
