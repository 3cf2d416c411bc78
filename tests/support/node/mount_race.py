"""Starts instances of an account that keeps exchanging its mount point for links, and prints what came of it as JSON.

Arguments: the archive of the node programs, a folder to work in, the account (UID:GID), the number of attempts, and
``shim`` or ``systemd``: what starts the shim. It is root's and runs on this machine or on a node.
"""

import ctypes
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

PROGRAMS, WORK, ACCOUNT, ATTEMPTS, STARTER = sys.argv[1:6]
sys.path.insert(0, PROGRAMS)
os.environ.setdefault("PROVISION_JOBS_ROOT", WORK + "/jobs")
os.environ.setdefault("PROVISION_JOBS_RUN", WORK + "/run")

from provision.node.files import write_json
from provision.node.supervisor.runtime import Trouble
from provision.node.supervisor.units import Unit
from provision.node.unit import launch, shim

MINE = WORK + "/mine"
VICTIM = WORK + "/victim"
"""Root's folder, in place of the node's own programs."""
EXCHANGE = 2
PROBE = f"cat {VICTIM}/mark; ls {VICTIM}/made; cat {MINE}/target/made/deep/mark 2>/dev/null"


def prepare() -> None:
    """Make the folders: the account's own, with what is to be mounted, and root's."""
    uid, gid = (int(word) for word in ACCOUNT.split(":"))
    for path in (MINE, MINE + "/source", MINE + "/target"):
        os.makedirs(path, exist_ok=True)
        os.chown(path, uid, gid)
    Path(MINE + "/source/mark").write_text("the account's\n")
    os.makedirs(VICTIM + "/made/deep")
    Path(VICTIM + "/mark").write_text("root's\n")
    for number, link in enumerate((VICTIM, WORK + "/elsewhere")):
        os.symlink(link, f"{MINE}/link{number}")
        os.lchown(f"{MINE}/link{number}", uid, gid)
    os.makedirs(WORK + "/elsewhere")
    Path(WORK + "/job/programs").mkdir(parents=True)
    shutil.copyfile(PROGRAMS, WORK + "/job/programs/node.pyz")


def exchange() -> int:
    """Start a process of the account that exchanges the mount point for links for as long as it lives."""
    pid = os.fork()
    if pid:
        return pid
    uid, gid = (int(word) for word in ACCOUNT.split(":"))
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    library = ctypes.CDLL(None)
    names = [f"{MINE}/{name}".encode() for name in ("target", "link0", "link1")]
    while True:
        pair = random.choice(((0, 1), (0, 2)))
        for longest in (0.0005, 0.005):  # as a link for a shorter time, so that some instances are started
            library.renameat2(-100, names[pair[0]], -100, names[pair[1]], EXCHANGE)
            time.sleep(random.random() * longest)


def attempt(number: int) -> str:
    """Make and start one instance; return what it printed, or why it was not started."""
    told = {
        "user": ACCOUNT,
        "folder": "/",
        "command": ["sh", "-c", PROBE],
        "limits": {},
        "binds": [[MINE + "/source", MINE + "/target/made/deep", "rw"]],
        "private": [],
    }
    config = {"name": "race", "instances": ["race"], "unit": told, "env": {}}
    job = {"name": "race", "id": "t", "attempt": number, "leases": []}
    unit = Unit(config, job, WORK + "/job", lambda *_: None)
    log = Path(WORK + "/job/race.log")
    log.unlink(missing_ok=True)
    try:
        unit.create("", threading.Event())
        if STARTER == "systemd":
            unit.start()
        else:
            document = launch.document_of(unit.launch(unit.config_in_home()))
            write_json(os.path.join(unit.unit_folder, launch.FILE), document)
            supervise(unit.unit_folder)
        while not (end := unit.record("end")):
            time.sleep(0.005)
    except Trouble as trouble:
        return f"refused: {trouble}"
    finally:
        unit.remove()
    if end.get("trouble"):
        return f"refused: {end['trouble']}"
    return "\n".join(line[30:] for line in log.read_text().splitlines())


def supervise(unit_folder: str) -> None:
    """Run the shim in a process of its own, as the unit's first program."""
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            shim.supervise(unit_folder)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def main() -> None:
    """Run all attempts, and count what they came to."""
    prepare()
    attacker = exchange()
    seen: dict = {}
    try:
        for number in range(1, int(ATTEMPTS) + 1):
            said = attempt(number)
            word = said.split(":")[0] if said.startswith("refused") else said
            seen[word] = seen.get(word, 0) + 1
            if word == "refused":
                seen.setdefault("why", said)
    finally:
        os.kill(attacker, signal.SIGKILL)
    roots = sorted(
        os.path.relpath(os.path.join(root, name), WORK)
        for top in (VICTIM, WORK + "/elsewhere")
        for root, folders, files in os.walk(top)
        for name in folders + files
    )
    print(json.dumps({"seen": seen, "roots": roots, "units": os.listdir(WORK + "/run/units")}))


main()
