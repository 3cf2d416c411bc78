"""Whether the keepers of jobs live on this node, and signals to them."""

import os
import re
import signal

from provision.node.files import is_locked, program, read_text
from provision.node.jobs.records import attempt_folder, unit_name

STOP_SIGNAL = signal.SIGUSR2  # to a keeper: stop, where that cannot be written down


def keeper_holds(folder):
    """Return whether a living keeper has the lock of its attempt."""
    return is_locked(os.path.join(folder, "keeper.lock"))


def keepers(attempts):
    """Return which of some (name, attempt) have a keeper: one that lives, or one that systemd starts anew."""
    active, asked = set(), {}
    for name, attempt in attempts:
        folder = attempt_folder(name, attempt)
        if not os.path.exists(os.path.join(folder, "keeper.json")):
            continue
        if keeper_holds(folder):
            active.add((name, attempt))
        else:
            asked[unit_name(name, attempt)] = (name, attempt)
    if asked:
        code, out, _ = program(["systemctl", "show", "--property=Id,ActiveState", "--", *asked], 10)
        found = dict(re.findall(r"^Id=(.*)\nActiveState=(.*)$", out, re.MULTILINE)) if code == 0 else {}
        found.update((unit, state) for state, unit in re.findall(r"^ActiveState=(.*)\nId=(.*)$", out, re.MULTILINE))
        living = ("active", "activating", "reloading", "deactivating")
        active.update(attempt for unit, attempt in asked.items() if found.get(unit) in living)
    return active


def signal_keeper(folder, number):
    """Send a signal to a living keeper: SIGUSR1 has it look at its folder now, which it does by itself a little later.

    Returns whether it was sent.
    """
    pid = read_text(os.path.join(folder, "keeper.lock")).strip()
    if pid.isdigit() and keeper_holds(folder):
        try:
            os.kill(int(pid), number)
        except OSError:
            return False
        return True
    return False
