"""The job supervisors of this node: whether they run, and signals to them."""

import os
import re
import signal
from typing import Iterable, Set

from provision.node.files import is_locked, program, read_text
from provision.node.jobs.records import Attempt, attempt_folder, unit_name

STOP_SIGNAL = signal.SIGUSR2  # stops the job if stop.json cannot be written


def has_supervisor(folder: str) -> bool:
    """Return whether a living job supervisor holds the lock of its attempt."""
    return is_locked(os.path.join(folder, "keeper.lock"))


def supervised(attempts: Iterable[Attempt]) -> Set[Attempt]:
    """Return the attempts with a job supervisor: one that lives, or one that systemd restarts."""
    active, units = set(), {}
    for name, attempt in attempts:
        folder = attempt_folder(name, attempt)
        if not os.path.exists(os.path.join(folder, "keeper.json")):
            continue
        if has_supervisor(folder):
            active.add((name, attempt))
        else:
            units[unit_name(name, attempt)] = (name, attempt)
    if units:
        code, out, _ = program(["systemctl", "show", "--property=Id,ActiveState", "--", *units], 10)
        states = dict(re.findall(r"^Id=(.*)\nActiveState=(.*)$", out, re.MULTILINE)) if code == 0 else {}
        states.update((unit, state) for state, unit in re.findall(r"^ActiveState=(.*)\nId=(.*)$", out, re.MULTILINE))
        living = ("active", "activating", "reloading", "deactivating")
        active.update(attempt for unit, attempt in units.items() if states.get(unit) in living)
    return active


def signal_supervisor(folder: str, number: int) -> bool:
    """Send a signal to a living job supervisor; return whether it was sent.

    SIGUSR1 makes it read its folder at once instead of a moment later.
    """
    pid = read_text(os.path.join(folder, "keeper.lock")).strip()
    if pid.isdigit() and has_supervisor(folder):
        try:
            os.kill(int(pid), number)
        except OSError:
            return False
        return True
    return False
