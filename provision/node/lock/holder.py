"""Keeps a node's lock while somebody changes the node; looks who has it, and ends a keeper whose operator is dead.

The first line of its standard input is JSON and says what to do.
It answers in lines of JSON. The lock is the kernel's (flock): it ends with this
process, however that ends.

A keeper hears its operator's side in further lines: ``{}`` (I am here), ``{"note": TEXT}``, ``{"finish": {...}}`` and
``{"release": WAIT}``. When that side is lost, Ansible's tasks may still be at work here; it waits for their end.
"""

import errno
import json
import os
import select
import signal
import sys
import time
from typing import Any, Dict, List, Tuple

from provision.node.audit import audit
from provision.node.lock.state import (
    SILENT,
    Held,
    alive,
    append,
    entries,
    is_held,
    lock_path,
    now,
    read_file,
    read_holder,
    settle,
    started,
    take,
    words,
    working,
    write_whole,
)

PROGRAM_MARKS = ("/provision/programs/", "provision-lock-keeper")
"""The command line of a lock holder contains one of these; the second one is that of earlier versions."""
NOTES, LETTERS = 50, 300
"""As many steps of one apply are kept, and as much of each."""


class Ended(Exception):
    """A signal asked for our end."""


def main() -> None:
    """Do what the first line of standard input says."""
    spec, rest = first_line()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir("/")
    os.umask(0o022)
    if spec["do"] == "keep":
        signal.signal(signal.SIGTERM, on_signal)
        keep(spec, rest)
    else:
        tell({"look": look, "unlock": unlock}[spec["do"]](spec))


def on_signal(_number: int, _frame: Any) -> None:
    """Leave the wait that we are in."""
    raise Ended


def first_line() -> Tuple[Dict[str, Any], bytes]:
    """Return what is to be done, and what was read beyond it."""
    data = b""
    while b"\n" not in data:
        piece = os.read(0, 65536)
        if not piece:
            sys.exit("the operator's side went away before it said what to do")
        data += piece
    line, _, rest = data.partition(b"\n")
    return json.loads(line.decode()), rest


def tell(document: Dict[str, Any]) -> None:
    """Answer one line; the other side being gone is no error here."""
    data = json.dumps(document).encode() + b"\n"
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        pass


def keep(spec: Dict[str, Any], rest: bytes) -> None:
    """Take the lock, say so, and keep it until the operator's side gives it up or is lost."""
    try:
        keeper = Keeper(spec)
    except Held as held:
        tell({"held": True, "holder": held.holder})
        return
    except OSError as error:
        tell({"failed": words(error), "errno": errno.errorcode.get(error.errno or 0, "")})
        return
    tell({"locked": keeper.path, "usual": keeper.usual})
    try:
        keeper.listen(rest)
    except Ended:
        keeper.died("a signal ended the keeper of the lock")
        keeper.free()


class Keeper:
    """One lock, held from the start; `Held` or OSError where it cannot be."""

    def __init__(self, spec: Dict[str, Any]) -> None:
        self.spec = spec
        self.holder = dict(spec["holder"], keeper={"pid": os.getpid(), "started": started(os.getpid())})
        self.path, self.usual = lock_path(spec["folders"])
        self.notes = []  # type: List[str]
        self.finished = False
        self.trouble = ""
        self.lock = take(self.path)
        try:
            write_whole(self.path + ".holder", json.dumps(self.holder))
            settle(spec["history"])
            first = {key: self.holder[key] for key in ("id", "user", "host", "pid", "command")}
            append(spec["history"], dict(first, started=self.holder["since"], status="running"))
        except OSError:
            self.free()
            raise
        self.audit("apply started")

    def audit(self, action: str, result: str = "ok") -> None:
        """Leave a record of what the holder of the lock does; the name is the one that the operator's side claims."""
        caller = "{}@{}".format(self.holder.get("user"), self.holder.get("host"))
        audit(action, caller, result, command=self.holder.get("command"))

    def listen(self, data: bytes) -> None:
        """Do what the operator's side says, until it gives the lock up or is lost."""
        heard = time.monotonic()
        while True:
            while b"\n" in data:
                line, _, data = data.partition(b"\n")
                heard = time.monotonic()
                if self.obey(json.loads(line.decode())):
                    return
            left = heard + self.spec["silence"] - time.monotonic()
            if left <= 0:
                self.lost("nothing was heard of it for {:g} s".format(self.spec["silence"]))
                return
            if select.select([0], [], [], left)[0]:
                piece = os.read(0, 65536)
                if not piece:
                    self.lost("its connection ended")
                    return
                data += piece

    def obey(self, order: Dict[str, Any]) -> bool:
        """Do one thing; return whether it was the last."""
        if "note" in order and len(self.notes) < NOTES:
            self.notes.append(str(order["note"])[:LETTERS])
            self.record({"notes": self.notes})
        if "finish" in order:
            outcome = {key: order["finish"].get(key) for key in ("status", "roles", "message")}
            self.record(dict(outcome, ended=now()))
            self.finished = True
            self.audit("applied", str(outcome["status"]))
        if "release" not in order:
            return False
        busy = working(self.spec["marks"]) if order["release"] else []
        if busy:
            tell({"released": False, "working": busy, "trouble": self.trouble})
            self.linger("it was interrupted")
        self.free()
        if not busy:
            tell({"released": True, "working": [], "trouble": self.trouble})
        return True

    def lost(self, why: str) -> None:
        """Give the lock up once nothing is at work any more, and write down that the apply never ended."""
        left = self.linger(why)
        text = "the operator's side was lost: " + why
        if left:
            text += "; still at work when the lock was given up: " + ", ".join(left)
            self.record({"notes": [*self.notes, text]})
        self.died(text)
        self.free()

    def died(self, why: str) -> None:
        """Write down that the apply never came to its end, unless it did."""
        if not self.finished:
            self.audit("applied", "died: " + why)
            self.record({"status": "died", "ended": now(), "message": why})

    def linger(self, why: str) -> List[str]:
        """Wait until Ansible has not been at work here for a while; return what still is after the longest wait."""
        try:
            write_whole(self.path + ".holder", json.dumps(dict(self.holder, gone=now(), why=why)))
        except OSError:
            pass
        end = time.monotonic() + self.spec["linger"]
        quiet = time.monotonic()
        while True:
            found = working(self.spec["marks"])
            if found:
                quiet = time.monotonic()
            if time.monotonic() - quiet >= self.spec["quiet"] or time.monotonic() >= end:
                return found
            time.sleep(min(0.5, self.spec["quiet"] / 4))

    def free(self) -> None:
        """Take the name off; the lock itself goes with this process."""
        try:
            os.unlink(self.path + ".holder")
        except OSError:
            pass

    def record(self, what: Dict[str, Any]) -> None:
        """Add a line about this apply to the history; what fails is told at the end."""
        try:
            append(self.spec["history"], dict(what, id=self.holder["id"]))
        except OSError as error:
            self.trouble = words(error)


def look(spec: Dict[str, Any]) -> Dict[str, Any]:
    """Return who has the lock, what Ansible runs here, and the newest applies; nothing is changed."""
    path, _ = lock_path(spec["folders"])
    held = is_held(path)
    holder = read_holder(path) if held else None
    holder = holder if alive(holder) else None
    try:
        found = entries(spec["history"])[0]
    except OSError as error:
        return {"failed": words(error), "errno": errno.errorcode.get(error.errno or 0, "")}
    for record in found:
        if record.get("status") == "running" and not (held and record["id"] == (holder or record)["id"]):
            record.update(status="died", message=SILENT)
    newest = found[-spec["entries"] :] if spec["entries"] else []
    return {"held": held, "holder": holder, "working": working(spec["marks"]), "entries": newest}


def unlock(spec: Dict[str, Any]) -> Dict[str, Any]:
    """End the keeper of one apply, and only that; `spec` names the apply and who wants it."""
    path, _ = lock_path(spec["folders"])
    if not is_held(path):
        return {"free": True}
    holder = read_holder(path)
    if holder is None or not alive(holder):
        return {"strange": True}
    if holder["id"] != spec["id"]:
        return {"other": holder}
    pid = int(holder["keeper"]["pid"])
    if not any(mark in read_file("/proc/{}/cmdline".format(pid)) for mark in PROGRAM_MARKS):
        return {"strange": True}
    if not any(end(pid, holder, number, spec["patience"]) for number in (signal.SIGTERM, signal.SIGKILL)):
        return {"stuck": pid}
    trouble = ""
    audit("unlocked", str(spec.get("message") or "unknown"), command=holder.get("command"))
    try:
        append(spec["history"], {"id": spec["id"], "status": "unlocked", "ended": now(), "message": spec["message"]})
    except OSError as error:
        trouble = words(error)
    return {"unlocked": True, "working": working(spec["marks"]), "trouble": trouble}


def end(pid: int, holder: Dict[str, Any], number: int, patience: float) -> bool:
    """Send a keeper a signal; return whether it ended in time."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    limit = time.monotonic() + patience
    while alive(holder) and time.monotonic() < limit:
        time.sleep(0.02)
    return not alive(holder)
