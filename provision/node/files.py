"""Files, programs and the clock of this node, for all that answers requests about jobs here. Python 3.6 or newer.

What few requests need is imported by them, because each request starts Python anew.
"""

import fcntl
import json
import os
import re
import signal
import time

PROC = os.environ.get("PROVISION_PROC") or "/proc"
LOCK_SECONDS = 30
read_ahead = b""
"""What was read of our input beyond the request's line."""
REMOVE_SECONDS = 600


class Refused(Exception):
    """What was asked for cannot be done; the text is for a person."""

    def __init__(self, message, remedy="", output=""):
        super().__init__(message)
        self.answer = {"error": {"message": message, "remedy": remedy, "output": output}}


# Files


def read_text(path):
    """Return a file as text, empty when there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # not `open`, which takes as long again for a small file
    except OSError:
        return ""
    try:
        return b"".join(iter(lambda: os.read(handle, 1 << 16), b"")).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(handle)


def read_json(path):
    """Return a file's JSON object; an empty one when there is none, or something else."""
    try:
        found = json.loads(read_text(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_whole(path, text, mode=0o600, *, lasting=True):
    """Write a file so that it is there whole or not at all.

    Unless it is to be `lasting`, the disk is not waited for: a power cut may undo it.
    """
    new = "{}.{}.new".format(path, os.getpid())
    remove(new)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(handle, mode)
            stream.write(text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text)
            stream.flush()
            if lasting:
                os.fsync(handle)
        os.rename(new, path)
    except BaseException:
        remove(new)
        raise


def write_json(path, value, mode=0o600, *, lasting=True):
    """Write a JSON document whole."""
    write_whole(path, json.dumps(value, sort_keys=True) + "\n", mode, lasting=lasting)


def remove(path):
    """Remove a file; return whether it was there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def names_in(folder):
    """Return the names in a folder, none when it is not there."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def remove_tree(path):
    """Remove a folder with all that is in it: by a program that no depth of folders, which jobs make, brings down."""
    if os.path.lexists(path):
        program(["/bin/rm", "-rf", "--", path], REMOVE_SECONDS)


def locked_within(handle, seconds):
    """Wait for a lock; return whether we have it."""
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


def is_held(path):
    """Return whether a living process has locked a file for itself."""
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


# Programs


def program(argv, seconds, env=None):
    """Run a program; return (exit code, its output, its errors). One that hangs is killed, and not waited for."""
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
    return outcome(child, argv[0], time.monotonic() + seconds)


def outcome(child, title, deadline):
    """Wait for a program until a time."""
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


def start_of(pid):
    """Return when a process began, in the kernel's ticks: no later one of its number began then. 0: it is gone."""
    words = read_text("{}/{}/stat".format(PROC, pid)).rpartition(")")[2].split()
    return int(words[19]) if len(words) > 19 and words[19].isdigit() else 0


def send_signal(pid, number, is_meant):
    """Send a signal to a process, and to no later one of its number.

    Args:
        pid: the process.
        number: the signal.
        is_meant: is asked, once the process is held by a pidfd (of Linux 5.3 and Python 3.9), whether it is that one.
    """
    handle = None
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        pass
    try:
        if is_meant():
            os.kill(pid, number) if handle is None else signal.pidfd_send_signal(handle, number)
    except OSError:
        pass
    finally:
        if handle is not None:
            os.close(handle)


# This boot, and times


def boot_id():
    """Return what tells this boot of the node from any other; of a node that is a container, its own."""
    return "{}.{}".format(read_text(PROC + "/sys/kernel/random/boot_id").strip(), init_ticks())


def boot_time():
    """Return when the node was booted, in seconds since the epoch."""
    found = re.search(r"^btime (\d+)", read_text(PROC + "/stat"), re.MULTILINE)
    return int(found.group(1)) + init_ticks() // os.sysconf("SC_CLK_TCK") if found else 0


def init_ticks():
    """Return when the first process began, in the kernel's ticks after its own beginning."""
    return start_of(1)


def stamp(seconds):
    """Return a time as the logs have it."""
    whole = int(seconds // 1)
    micro = min(int((seconds - whole) * 1e6), 999999)
    return "{}.{:06d}Z".format(time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)), micro)
