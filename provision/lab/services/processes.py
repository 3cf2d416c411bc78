"""Processes that outlive the command that started them: identified by process ID and start time.

A process ID alone may be reused. The record therefore contains the start time and the boot ID too, and the process
writes it before it becomes the service, so that no service runs unrecorded, even if the command is killed.
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
    """The identity of a recorded process, which is unique on the controller."""

    pid: int
    started: int
    boot: str


def start(argv: Sequence[str], *, record: Path, log: Path, address: str, port: int) -> None:
    """Start `argv` in the background and return when it answers on `address`:`port`.

    Raises:
        LabError: the process exited or did not answer in time; it is stopped.
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
        remedy="Check the end of the log; `provision lab down` and `provision lab up` start it again.",
        output="\n".join(log.read_text(errors="replace").splitlines()[-10:]),
    )


def read_record(record: Path) -> Recorded | None:
    """Return the contents of `record`, or None if it is missing or invalid."""
    try:
        return decode(record.read_bytes(), Recorded, node="", what=str(record))
    except (OSError, InvalidDocument):
        return None


def running(record: Path) -> bool:
    """Return whether the recorded process runs; a later process with the same ID does not count."""
    recorded = read_record(record)
    return recorded is not None and _is_running(recorded)


def stop(record: Path) -> None:
    """Stop the recorded process if it still runs, and delete the record."""
    recorded = read_record(record)
    if recorded is not None:
        _end(recorded, signal.SIGTERM)
        _end(recorded, signal.SIGKILL)
    record.unlink(missing_ok=True)


def answers(address: str, port: int) -> bool:
    """Return whether the address accepts connections."""
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
        if _is_running(recorded):  # checked after opening the descriptor, so that the process ID cannot be reused
            signal.pidfd_send_signal(handle, number)
            select.select([handle], [], [], _STOP_SECONDS)  # until its last thread has ended, which frees its port
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
    """Collect the exit status if the process is a child of this one, so that no zombie remains."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
