"""Processes that outlive the command which started them: recorded by pid and start time, ended only by that.

A pid alone may belong to somebody else by the time we look again. The record therefore holds the start time
and the boot too, and the process writes it itself before it becomes the service: there is no moment in which a
service runs unrecorded, whenever we are killed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.documents import decode
from provision.errors import InvalidDocument, LabError

__all__ = ["Recorded", "answers", "read_record", "running", "start", "stop"]

_LAUNCHER = r"""
record=$1; shift
started=$(cut -d' ' -f22 "/proc/$$/stat")
boot=$(cat /proc/sys/kernel/random/boot_id)
printf '{"pid": %d, "started": %d, "boot": "%s"}\n' "$$" "$started" "$boot" >"$record.new"
mv "$record.new" "$record"
exec "$@"
"""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_READY_SECONDS = 20.0
_STOP_SECONDS = 5.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Recorded:
    """A process as its record names it: unique on this machine, unlike a bare pid."""

    pid: int
    started: int
    boot: str


def start(argv: Sequence[str], *, record: Path, log: Path, address: str, port: int) -> None:
    """Start `argv` detached from this command and return when it answers on `address`:`port`.

    Raises:
        LabError: the process ended or did not answer in time; it is not left running.
    """
    record.unlink(missing_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _LAUNCHER, "lab-service", str(record), *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if record.exists() and answers(address, port):
            return
        time.sleep(_POLL_SECONDS)
    stop(record)
    if process.poll() is None:
        process.kill()
        process.wait()
    raise LabError(
        f"the lab's {record.stem} did not start on {address}:{port} (log: {log})",
        remedy="Read the log's last lines; `provision lab down` and `provision lab up` make a new start.",
        output="\n".join(log.read_text(errors="replace").splitlines()[-10:]),
    )


def read_record(record: Path) -> Recorded | None:
    """Return what `record` names, or None when there is none that can be read."""
    try:
        return decode(record.read_bytes(), Recorded, node="", what=str(record))
    except (OSError, InvalidDocument):
        return None


def running(record: Path) -> bool:
    """Tell whether exactly the recorded process runs; a later process with its pid does not count."""
    recorded = read_record(record)
    return recorded is not None and _is_running(recorded)


def stop(record: Path) -> None:
    """End the recorded process, if it still is that one, and forget it."""
    recorded = read_record(record)
    if recorded is not None:
        _end(recorded, signal.SIGTERM)
        _end(recorded, signal.SIGKILL)
    record.unlink(missing_ok=True)


def answers(address: str, port: int) -> bool:
    """Tell whether something accepts connections there."""
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False


def _end(recorded: Recorded, number: signal.Signals) -> None:
    try:
        handle = os.pidfd_open(recorded.pid)
    except OSError:
        return
    try:
        if _is_running(recorded):  # looked at after the handle was taken: the pid cannot change hands any more
            signal.pidfd_send_signal(handle, number)
            select.select([handle], [], [], _STOP_SECONDS)  # until its last thread is gone, and its port with it
    except ProcessLookupError:
        return
    finally:
        os.close(handle)
    _reap(recorded.pid)


def _is_running(recorded: Recorded) -> bool:
    try:
        fields = Path(f"/proc/{recorded.pid}/stat").read_text().rpartition(")")[2].split()
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        return False
    state, started = fields[0], int(fields[19])
    return state not in {"Z", "X"} and started == recorded.started and boot == recorded.boot


def _reap(pid: int) -> None:
    """Collect the exit status when the process is our own child, so that no zombie stays behind."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
