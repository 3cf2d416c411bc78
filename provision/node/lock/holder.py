"""Holds a node's lock while a command changes the node; reports the lock holder; ends one whose command is lost.

The first line of standard input is a request in JSON; the answers are lines of JSON. The lock is the kernel's (flock):
it ends with this process.

A lock holder reads further lines of the command: ``{}`` (it is connected), ``{"note": TEXT}``, ``{"finish": {...}}``
and ``{"release": WAIT}``. When the command is lost, Ansible's tasks may still run on the node; it waits for their end.
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
"""Maximum number of recorded steps of one apply, and of characters of each."""


class Ended(Exception):
    """A signal has requested the end of this process."""


def main() -> None:
    """Execute the request on the first line of standard input."""
    spec, rest = first_line()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir("/")
    os.umask(0o022)
    if spec["do"] == "keep":
        signal.signal(signal.SIGTERM, on_signal)
        hold(spec, rest)
    else:
        send({"look": look, "unlock": unlock}[spec["do"]](spec))


def on_signal(_number: int, _frame: Any) -> None:
    """Interrupt the current wait."""
    raise Ended


def first_line() -> Tuple[Dict[str, Any], bytes]:
    """Return the request, and the bytes that were read after it."""
    data = b""
    while b"\n" not in data:
        piece = os.read(0, 65536)
        if not piece:
            sys.exit("standard input ended before the request")
        data += piece
    line, _, rest = data.partition(b"\n")
    return json.loads(line.decode()), rest


def send(document: Dict[str, Any]) -> None:
    """Send one line; a closed connection is no error here."""
    data = json.dumps(document).encode() + b"\n"
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        pass


def hold(spec: Dict[str, Any], rest: bytes) -> None:
    """Take the lock, report that, and hold it until the command releases it or is lost."""
    try:
        holder = LockHolder(spec)
    except Held as held:
        send({"held": True, "holder": held.holder})
        return
    except OSError as error:
        send({"failed": words(error), "errno": errno.errorcode.get(error.errno or 0, "")})
        return
    send({"locked": holder.path, "usual": holder.usual})
    try:
        holder.listen(rest)
    except Ended:
        holder.record_death("a signal ended the lock holder")
        holder.free()


class LockHolder:
    """The holder of a lock, which it takes when it is created.

    Raises:
        Held: another process holds the lock.
        OSError: the lock, its record or the history cannot be written.
    """

    def __init__(self, spec: Dict[str, Any]) -> None:
        self.spec = spec
        self.holder = dict(spec["holder"])
        self.holder["keeper"] = {"pid": os.getpid(), "started": started(os.getpid())}
        self.path, self.usual = lock_path(spec["folders"])
        self.notes: List[str] = []
        self.is_finished = False
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
        """Write an audit record of the command; the name is the one that the command claims."""
        caller = "{}@{}".format(self.holder.get("user"), self.holder.get("host"))
        audit(action, caller, result, command=self.holder.get("command"))

    def listen(self, data: bytes) -> None:
        """Execute the orders of the command until it releases the lock or is lost."""
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
        """Execute one order; return whether it was the last one."""
        if "note" in order and len(self.notes) < NOTES:
            self.notes.append(str(order["note"])[:LETTERS])
            self.record({"notes": self.notes})
        if "finish" in order:
            outcome = {key: order["finish"].get(key) for key in ("status", "roles", "message")}
            self.record(dict(outcome, ended=now()))
            self.is_finished = True
            self.audit("applied", str(outcome["status"]))
        if "release" not in order:
            return False
        busy = working(self.spec["marks"]) if order["release"] else []
        if busy:
            send({"released": False, "working": busy, "trouble": self.trouble})
            self.linger("it was interrupted")
        self.free()
        if not busy:
            send({"released": True, "working": [], "trouble": self.trouble})
        return True

    def lost(self, why: str) -> None:
        """Release the lock once no task runs any more, and record that the apply has no result."""
        left = self.linger(why)
        text = "the command was lost: " + why
        if left:
            text += "; still running when the lock was released: " + ", ".join(left)
            self.record({"notes": [*self.notes, text]})
        self.record_death(text)
        self.free()

    def record_death(self, why: str) -> None:
        """Record that the apply has no result, unless it has one."""
        if not self.is_finished:
            self.audit("applied", "died: " + why)
            self.record({"status": "died", "ended": now(), "message": why})

    def linger(self, why: str) -> List[str]:
        """Wait until no task of Ansible has run for a while; return the running ones after the maximum wait."""
        try:
            write_whole(self.path + ".holder", json.dumps(dict(self.holder, gone=now(), why=why)))
        except OSError:
            pass
        end = time.monotonic() + self.spec["linger"]
        quiet = time.monotonic()
        while True:
            running = working(self.spec["marks"])
            if running:
                quiet = time.monotonic()
            if time.monotonic() - quiet >= self.spec["quiet"] or time.monotonic() >= end:
                return running
            time.sleep(min(0.5, self.spec["quiet"] / 4))

    def free(self) -> None:
        """Remove the record of the holder; the lock itself ends with this process."""
        try:
            os.unlink(self.path + ".holder")
        except OSError:
            pass

    def record(self, what: Dict[str, Any]) -> None:
        """Add a line about this apply to the history; an error is reported at the end."""
        try:
            append(self.spec["history"], dict(what, id=self.holder["id"]))
        except OSError as error:
            self.trouble = words(error)


def look(spec: Dict[str, Any]) -> Dict[str, Any]:
    """Return the lock holder, the running tasks of Ansible, and the latest applies; change nothing."""
    path, _ = lock_path(spec["folders"])
    held = is_held(path)
    holder = read_holder(path) if held else None
    holder = holder if alive(holder) else None
    try:
        applies = entries(spec["history"])[0]
    except OSError as error:
        return {"failed": words(error), "errno": errno.errorcode.get(error.errno or 0, "")}
    for record in applies:
        if record.get("status") == "running" and not (held and record["id"] == (holder or record)["id"]):
            record.update(status="died", message=SILENT)
    newest = applies[-spec["entries"] :] if spec["entries"] else []
    return {"held": held, "holder": holder, "working": working(spec["marks"]), "entries": newest}


def unlock(spec: Dict[str, Any]) -> Dict[str, Any]:
    """End the lock holder of one apply only; `spec` contains the apply and the operator who requests the end."""
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
    """Send a signal to a lock holder; return whether it ended in time."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    limit = time.monotonic() + patience
    while alive(holder) and time.monotonic() < limit:
        time.sleep(0.02)
    return not alive(holder)
