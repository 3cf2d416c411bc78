"""Revert a change of a role that the controller did not confirm over a new connection: it may have cut off the operator.

As a program, it is started by systemd on the node: at the limit of a change, and at a boot before the confirmation. The
modules of the roles import it. Python 3.6 or newer and the standard library only.
"""

import base64
import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress

FOLDER = "/var/lib/provision/rescue"
UNITS = "/etc/systemd/system"
BOOT_UNIT = "provision-rescue-boot.service"
BOOT_TARGET = "sysinit.target.wants"
PROGRAM = "rescue.py"
RESTORECON = "/usr/sbin/restorecon"
COMMAND_SECONDS, LOCK_SECONDS = 60, 120
MOST_BYTES, MOST_DOCUMENT_BYTES = 2**22, 2**23
SPARE_BYTES = 1000
"""For values of the document that change."""
MOST_PROBLEMS, MOST_FILES = 20, 50
"""Parts of the record of the last change, which every probe reads."""
BOOT = """\
# Managed by provision (role platform). It exists while a change waits for its confirmation.
[Unit]
Description=Revert a change that was not confirmed before the boot
DefaultDependencies=no
RequiresMountsFor={folder}
ConditionPathExists={folder}/pending.json
After=local-fs.target systemd-remount-fs.service systemd-udev-trigger.service
Before=network-pre.target firewalld.service ufw.service
Wants=network-pre.target

[Service]
Type=oneshot
TimeoutStartSec=300
ExecStart={python} -I -S {folder}/{program} boot
"""


def document_path(name):
    """Return the path of a document: `pending` is the change that waits, `last` the last one that ended, `result` that of its module."""
    return os.path.join(FOLDER, name + ".json")


def read_document(name):
    """Return a document, an empty one if it is missing or invalid."""
    try:
        with open(document_path(name), encoding="utf-8") as stream:
            document = json.loads(stream.read(MOST_DOCUMENT_BYTES))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def write_document(name, document):
    """Write a document that only root can read, atomically even if the power fails."""
    write_file(document_path(name), json.dumps(document, sort_keys=True).encode(), 0o600)


def require_readable(document):
    """Require that a document can be read again.

    Raises:
        ValueError: it is too large.
    """
    size = len(json.dumps(document, sort_keys=True))
    if size + SPARE_BYTES > MOST_DOCUMENT_BYTES:
        raise ValueError(f"they have {size} bytes together, of at most {MOST_DOCUMENT_BYTES - SPARE_BYTES}")


def write_file(path, content, mode, owner=None, group=None):
    """Replace a file atomically even if the power fails."""
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".provision-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            if owner is not None and group is not None:
                os.fchown(handle, owner, group)
            os.fchmod(handle, mode)
            os.fsync(handle)
        os.rename(temporary, path)
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)
    sync_folder(folder)


def remove(path):
    """Remove a file that may not exist."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def sync_folder(folder):
    """Write a folder's entries to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


class LockTimeout(Exception):
    """Another process holds the lock of the documents."""


@contextmanager
def locked(*, required=True):
    """Hold the lock of the documents.

    Args:
        required: whether to give up if another process holds it for long. A revert goes on: that process hangs, and to
            restore twice is the same as once.

    Raises:
        LockTimeout: another process holds the lock.
    """
    handle = os.open(os.path.join(FOLDER, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not _lock(handle) and required:
            raise LockTimeout("another process holds the lock {}/lock for more than {} s".format(FOLDER, LOCK_SECONDS))
        yield
    finally:
        os.close(handle)


def _lock(handle):
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)
        else:
            return True


def boot_name():
    """Return a name of this boot. A restarted container has the kernel's boot ID, and another start of process 1."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        boot_id = stream.read().strip()
    with open("/proc/1/stat", encoding="utf-8", errors="replace") as stream:
        return "{} {}".format(boot_id, stream.read().rpartition(")")[2].split()[19])


def is_expired(pending):
    """Return whether the limit of a change has passed, or the node was booted since."""
    return pending.get("boot") != boot_name() or time.monotonic() >= pending.get("deadline", 0)


def expiry_cause(pending, cause):
    """Return why the limit of a change has passed: a boot since the change, else the given cause."""
    return cause if pending.get("boot") == boot_name() else "boot"


def saved_file(path):
    """Return the content and the attributes of a file that is about to change.

    Raises:
        ValueError: it is not a regular file, or too large.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {"path": path, "existed": False}
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(f"{path}: it is a symbolic link") from None
        raise
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            raise ValueError(f"{path}: not a regular file of at most {MOST_BYTES} bytes")
        return {
            "path": path,
            "existed": True,
            "content": base64.b64encode(stream.read()).decode(),
            "mode": stat.S_IMODE(status.st_mode),
            "owner": status.st_uid,
            "group": status.st_gid,
        }


def restore_file(saved):
    """Restore a file."""
    path = saved["path"]
    if not saved["existed"]:
        remove(path)
        return
    write_file(path, base64.b64decode(saved["content"]), saved["mode"], saved["owner"], saved["group"])
    if os.path.exists("/sys/fs/selinux/enforce") and os.access(RESTORECON, os.X_OK):
        run([RESTORECON, "-i", path])


def run(command):
    """Run a program with a time limit; return why it failed, empty if it did not."""
    environment = dict(os.environ, LC_ALL="C", PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    with _output() as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output or subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            return f"`{' '.join(command)}` failed: {error.strerror}"
        try:
            process.wait(timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"`{' '.join(command)}` did not end within {COMMAND_SECONDS} s"
        if not process.returncode:
            return ""
        return f"`{' '.join(command)}` failed: {_end_of(output)}"


@contextmanager
def _output():
    """Provide a file for output, which no child can hold as it can a pipe; None if the disk is full."""
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    except OSError:
        file = None
    try:
        yield file
    finally:
        if file:
            file.close()


def _end_of(output):
    if not output:
        return ""
    output.seek(max(0, output.seek(0, os.SEEK_END) - 1000))
    return output.read().decode("utf-8", "replace").strip()[-200:]


def undo(pending, *, at_boot=False):
    """Restore the files of a change, run its commands, and restore records of the roles; call it with the lock held.

    If something fails, new records stay, so that a reset knows what to restore.

    Args:
        pending: the change.
        at_boot: whether the network is not yet configured, so that the commands for boots run.

    Returns:
        what failed; whether all files are restored.
    """
    files = _restore(pending["files"])
    commands = [problem for problem in map(run, pending["boot_commands" if at_boot else "commands"]) if problem]
    has_failed = bool(files or commands)
    records = [saved for saved in pending["records"] if not has_failed or not os.path.lexists(saved["path"])]
    unrestored = files + _restore(records)
    return unrestored + commands, not unrestored


def _restore(files):
    problems = []
    for saved in files:
        try:
            restore_file(saved)
        except OSError as error:
            problems.append("{}: cannot restore it ({})".format(saved["path"], error.strerror))
    return problems


def undo_pending(pending, cause, *, at_boot=False):
    """Revert the change that waits, and return the record. If a file cannot be restored, the change waits for a later try."""
    problems, is_complete = undo(pending, at_boot=at_boot)
    return end(pending, "reverted", cause, problems, is_complete=is_complete)


def end(pending, state, cause="", problems=(), *, is_complete=True):
    """Record how a change ended, and remove what waits for it. Call it with the lock held."""
    last = {key: pending[key] for key in ("token", "role", "what", "seconds")}
    last.update(state=state, cause=cause, problems=list(problems)[:MOST_PROBLEMS], at=int(time.time()))
    last.update(files=file_paths(pending)[:MOST_FILES], is_complete=is_complete)
    try:
        remove(document_path("result"))
        if state == "confirmed":  # the controller may ask again
            write_document("result", {"token": pending["token"], "result": pending.get("result", {})})
        write_document("last", last)
    except OSError as error:
        last["problems"].append(f"{document_path('last')}: cannot write it ({error.strerror})")
    if is_complete:
        remove_pending()
    return last


def file_paths(document):
    """Return the paths of the files of a change that waits, or of one that ended."""
    return [saved["path"] if isinstance(saved, dict) else saved for saved in document.get("files", ())]


def remove_pending():
    """Remove the change that waits, and the unit that would revert it at a boot."""
    for path in (document_path("pending"), *boot_paths()):
        remove(path)
    sync_folder(FOLDER)


def revert(cause, token=None):
    """Revert the change that waits, if it is that of the token; return the record of the last change that ended."""
    with locked(required=False):
        pending = read_document("pending")
        if not pending or (token and pending["token"] != token):
            return read_document("last")
        if cause == "limit" and pending.get("stage") != "changed":
            cause = "late"
        return undo_pending(pending, cause, at_boot=cause == "boot")


def boot_paths():
    """Return the paths of the unit that runs at boot, and of the link that enables it."""
    return [os.path.join(UNITS, BOOT_TARGET, BOOT_UNIT), os.path.join(UNITS, BOOT_UNIT)]


def main(words):
    """Revert the change that waits; the words are the cause, and the token of the change at its limit.

    The word `check` has no effect.
    """
    cause, token = words[0], "".join(words[1:2])
    if cause == "check":
        return 0
    if cause == "boot" and read_document("pending").get("boot") == boot_name():
        return 0  # the change was made after this boot
    try:
        problems = revert(cause, token).get("problems")
    except OSError as error:
        problems = [str(error)]
    for problem in problems or ():
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
