"""Ends the remaining processes of one job on this machine, and prints those that do not end. `reap.sh` starts it.

Arguments: the job's id, the seconds in which it may end by itself, ``1`` to send SIGTERM to the launcher first, and
``1`` to wait for all of these seconds, because a process of the job may be starting at this moment.

A process belongs to the job if it has the job's mark, descends from a process of the job, or belonged to it before: a
child remains a process of the job when its parent ends first. A process is identified by its number and start time. Its
name, which it can choose, only decides which processes of the job receive SIGTERM first. Python 3.6 or newer.
"""

import os
import signal
import sys
import time
from typing import Dict, NamedTuple, Optional, Set, Tuple

LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "prte")
BOOT_CLOCK = 7  # time.CLOCK_BOOTTIME of Python 3.7
STEP = 0.2
KILLS = 20


class Process(NamedTuple):
    """A living process."""

    start: int
    """Its start time in the kernel's ticks."""
    parent: int
    name: str


Processes = Dict[int, Process]


def read(path: str) -> bytes:
    """Return a file of /proc, empty if its process has ended."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def process_of(pid: int) -> Optional[Process]:
    """Return a living process, None for any other number."""
    head, _, rest = read("/proc/{}/stat".format(pid)).rpartition(b")")
    words = rest.split()
    if len(words) < 20 or words[0] in (b"Z", b"X"):
        return None
    name = head.partition(b"(")[2].decode(errors="replace")
    return Process(int(words[19]), int(words[1]), "".join(letter if letter.isprintable() else "?" for letter in name))


def living_processes() -> Processes:
    """Return all living processes by their numbers."""
    table = ((int(item), process_of(int(item))) for item in os.listdir("/proc") if item.isdigit())
    return {pid: process for pid, process in table if process}


def members(job: str, known: Set[Tuple[int, int]]) -> Processes:
    """Return the living processes of a job; `known` has number and start time of those that belonged to it before."""
    began = time.clock_gettime(BOOT_CLOCK) * os.sysconf("SC_CLK_TCK") - 1
    table = living_processes()
    mark = b"PROVISION_JOB=" + job.encode()
    inside = {pid for pid, process in table.items() if (pid, process.start) in known}
    inside |= {pid for pid in table if mark in read("/proc/{}/environ".format(pid)).split(b"\0")}
    while True:
        children = {pid for pid, process in table.items() if process.parent in inside} - inside
        # The parent's number may belong to another process by now; then that one and its children are new.
        more = {pid for pid in children if table[pid].start < began or is_alive(table[pid].parent, table)}
        if not more:
            return {pid: table[pid] for pid in inside}
        inside |= more


def is_alive(pid: int, table: Processes) -> bool:
    """Return whether a process of the table still has its number."""
    process = process_of(pid)
    return process is not None and process.start == table[pid].start


def send(processes: Processes, number: int) -> None:
    """Send a signal to processes, and not to later ones with their numbers: a pidfd refers to one process only."""
    for pid in processes:
        handle = None
        try:
            if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):  # novermin
                handle = os.pidfd_open(pid)
        except OSError:
            pass  # it has ended, or the kernel is older than 5.3
        try:
            if is_alive(pid, processes):
                os.kill(pid, number) if handle is None else signal.pidfd_send_signal(handle, number)  # novermin
        except OSError:
            pass
        if handle is not None:
            os.close(handle)


def reap(job: str, grace: float, *, term: bool, linger: bool) -> Processes:
    """End the job; return its remaining processes."""
    left = members(job, set())
    known = {(pid, process.start) for pid, process in left.items()}

    def after_step() -> Processes:
        time.sleep(STEP)
        current = members(job, known)
        known.update((pid, process.start) for pid, process in current.items())
        return current

    if term:
        send({pid: process for pid, process in left.items() if process.name in LAUNCHERS} or left, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while (left or linger) and time.monotonic() < deadline:
        left = after_step()
    for _ in range(KILLS):
        if not left:
            break
        send(left, signal.SIGKILL)
        left = after_step()
    return left


def main() -> int:
    """End the job of the arguments; return 1 if processes remain."""
    job, grace, term, linger = sys.argv[1:5]
    left = reap(job, float(grace), term=term == "1", linger=linger == "1")
    for pid, process in left.items():
        print(pid, process.name)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
