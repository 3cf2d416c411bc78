"""Ends what is left of one job on this machine, and prints what does not end. `reap.sh` starts it.

Arguments: the job's id, the seconds in which it may end by itself, ``1`` to send the launcher SIGTERM first, and ``1``
to stay for all of these seconds, because a process of the job may be starting this very moment.

Of the job is what carries its mark, what descends from that, and what was of it before: a child stays one of the job
when its parent ends first. A process is its number and its start time. Its name is its own choice and decides nothing
but which of the job's processes hear SIGTERM first. Python 3.6 or newer.
"""

import os
import signal
import sys
import time

LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "prte")
BOOT_CLOCK = 7  # time.CLOCK_BOOTTIME of Python 3.7
STEP = 0.2
KILLS = 20


def read(path):
    """Return a file of /proc, empty when its process is gone."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def stat_of(pid):
    """Return (start time, number of the parent, name) of a living process; None of any other."""
    head, _, rest = read("/proc/{}/stat".format(pid)).rpartition(b")")
    words = rest.split()
    if len(words) < 20 or words[0] in (b"Z", b"X"):
        return None
    name = head.partition(b"(")[2].decode(errors="replace")
    return int(words[19]), int(words[1]), "".join(letter if letter.isprintable() else "?" for letter in name)


def members(job, known):
    """Return the living processes of a job as {pid: (start time, name)}; `known` has those of before as pairs."""
    began = time.clock_gettime(BOOT_CLOCK) * os.sysconf("SC_CLK_TCK") - 1
    table = {int(item): stat_of(item) for item in os.listdir("/proc") if item.isdigit()}
    table = {pid: found for pid, found in table.items() if found}
    mark = b"PROVISION_JOB=" + job.encode()
    inside = {pid for pid, found in table.items() if (pid, found[0]) in known}
    inside |= {pid for pid in table if mark in read("/proc/{}/environ".format(pid)).split(b"\0")}
    while True:
        children = {pid for pid, found in table.items() if found[1] in inside} - inside
        # The parent's number may be another process's by now; then that one and its children are new.
        more = {pid for pid in children if table[pid][0] < began or is_still(table[pid][1], table[table[pid][1]][0])}
        if not more:
            return {pid: (table[pid][0], table[pid][2]) for pid in inside}
        inside |= more


def is_still(pid, start):
    """Return whether a number still is the same process's."""
    found = stat_of(pid)
    return found is not None and found[0] == start


def send(processes, number):
    """Send a signal to processes, and to none that has got the number of one: a pidfd is of one process alone."""
    for pid, (start, _) in processes.items():
        handle = None
        try:
            if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
                handle = os.pidfd_open(pid)
        except OSError:
            pass  # it is gone, or the kernel is older than 5.3
        try:
            if is_still(pid, start):
                os.kill(pid, number) if handle is None else signal.pidfd_send_signal(handle, number)
        except OSError:
            pass
        if handle is not None:
            os.close(handle)


def reap(job, grace, term, linger):
    """End the job; return what is left of it."""
    left = members(job, set())
    known = {(pid, start) for pid, (start, _) in left.items()}

    def look():
        time.sleep(STEP)
        found = members(job, known)
        known.update((pid, start) for pid, (start, _) in found.items())
        return found

    if term:
        send({pid: about for pid, about in left.items() if about[1] in LAUNCHERS} or left, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while (left or linger) and time.monotonic() < deadline:
        left = look()
    for _ in range(KILLS):
        if not left:
            break
        send(left, signal.SIGKILL)
        left = look()
    return left


if __name__ == "__main__":
    remains = reap(sys.argv[1], float(sys.argv[2]), sys.argv[3] == "1", sys.argv[4] == "1")
    for number, (_, name) in remains.items():
        print(number, name)
    sys.exit(1 if remains else 0)
