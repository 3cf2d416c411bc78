"""Writes this node's audit record: one line of JSON for each action, through syslog.

It is a part of the programs on nodes (the lock holder, the program for jobs, the job agent) and needs Python 3.6 and
nothing else. journald or the syslog daemon adds its own time and the sender's user ID; `provision history --audit`
reads the lines back. Every value is data: JSON escapes line ends and control characters, and lengths are bounded.
"""

import json
import os
import re
import time
from typing import Any, Dict, List, Tuple

IDENT = "provision-audit"
PROC = "/proc"
LETTERS, ITEMS = 200, 32
"""The longest text, and the most names in a list."""
PARENTS = 16
ADDRESS = re.compile(r"[0-9A-Fa-f.:]{2,45}(%[0-9A-Za-z_.-]{1,16})?\Z")


def audit(action: str, caller: str, result: str = "ok", **more: Any) -> None:
    """Record one action.

    Args:
        action: a past participle, such as ``stopped``.
        caller: the person's name in the inventory where the job agent knows it; else the claimed ``user@host``.
        result: ``ok`` or why it was refused.
        more: ``job``, ``instance``, ``secrets`` (names only), ``agent`` (whether the caller's key was checked), ...
    """
    import syslog

    syslog.openlog(IDENT, 0, syslog.LOG_AUTHPRIV)
    syslog.syslog(syslog.LOG_INFO, line_of(action, caller, result, **more))
    syslog.closelog()


def line_of(action: str, caller: str, result: str = "ok", **more: Any) -> str:
    """Return the record as one line of ASCII."""
    record = {"time": round(time.time(), 3), "action": action, "caller": caller, "result": result}  # type: Dict[str, Any]
    record["address"] = client_address()
    record.update((key, value) for key, value in more.items() if value not in (None, "", []))
    return json.dumps({key: bounded(value) for key, value in record.items()}, sort_keys=True)


def bounded(value: Any) -> Any:
    """Return a value that is fit for the record: a number, a short text, or a short list of short texts."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple, set, dict)):
        names = sorted(map(str, value))
        return [name[:LETTERS] for name in names[:ITEMS]]
    return str(value)[:LETTERS]


def client_address() -> str:
    """Return the address that the SSH session comes from, empty where there is none.

    sudo clears the environment, so the processes above this one are asked too.
    """
    pid = os.getpid()
    for _ in range(PARENTS):
        for entry in read("{}/{}/environ".format(PROC, pid)).split("\0"):
            name, _, value = entry.partition("=")
            if name == "SSH_CONNECTION":
                address = value.partition(" ")[0]
                return address if ADDRESS.match(address) else ""
        parent = read("{}/{}/stat".format(PROC, pid)).rpartition(")")[2].split()[1:2]
        if parent in ([], ["0"], ["1"]) or not parent[0].isdigit():
            return ""
        pid = int(parent[0])
    return ""


def read(path: str) -> str:
    """Return the beginning of a file as text, empty when it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(1 << 16).decode(errors="replace")
    except OSError:
        return ""


# Requests about jobs


def caller_of(request: Dict[str, Any]) -> Tuple[str, bool]:
    """Return who asks, and whether the job agent has checked it: only the agent can set the environment."""
    name = os.environ.get("PROVISION_JOB_AGENT")
    return (name, True) if name else (str(request.get("by") or "unknown"), False)


def is_audited(do: str) -> bool:
    """Return whether requests of a kind may be recorded."""
    return do in ACTIONS or do == "queue"


def of_request(do: str, request: Dict[str, Any], answer: Any = None, refused: str = "", job: Any = None) -> None:
    """Record a request about jobs, where it is one that changes something or shows what a job has.

    `job` is the job as the node has recorded it: its owner and ID are recorded too.
    """
    action = action_of(do, request, answer if isinstance(answer, dict) else {}, refused)
    if not action:
        return
    caller, checked = caller_of(request)
    more = {"job": request.get("name"), "instance": request.get("instance"), "secrets": secrets_of(do, request, answer)}
    if do == "drain":
        more["reason"] = request.get("reason")
    if isinstance(job, dict):
        more.update(owner=job.get("owner"), id=job.get("id"))
    audit(action, caller, refused or "ok", agent=checked, **more)


def action_of(do: str, request: Dict[str, Any], answer: Dict[str, Any], refused: str) -> str:
    """Return what a request did, empty where it is not recorded."""
    if request.get("action") in ("released", "restarted"):
        return str(request["action"])
    if do == "queue":
        queue = request.get("queue")
        requested = isinstance(queue, dict) and queue.get("state") == "stopped" and not request.get("confirmed")
        return "stopped" if requested else ""
    if do == "secrets" and not refused and not secrets_of(do, request, answer):
        return ""
    if not refused and (do, False) in [(name, answer.get(key)) for name, key in NOTHING_DONE]:
        return ""
    return ACTIONS.get(do, "")


ACTIONS = {
    "reserve": "submitted",
    "start": "started",
    "stop": "stopped",
    "delete": "deleted",
    "logs": "read logs",
    "secrets": "used secrets",
    "attached": "attached",
    "drain": "drained",
    "resume": "resumed",
}
NOTHING_DONE = (("reserve", "reserved"), ("stop", "asked"), ("delete", "deleted"))
"""Request and the key of its answer that is false where nothing was done."""


def secrets_of(do: str, request: Dict[str, Any], answer: Any) -> List[str]:
    """Return the names of the secrets that a request brings or fetches; values are never recorded."""
    secrets = {"reserve": request.get("secrets"), "secrets": answer}.get(do)
    kinds = secrets if isinstance(secrets, dict) else {}
    return sorted({str(name) for kind in kinds.values() if isinstance(kind, dict) for name in kind})


def attached(_request: Dict[str, Any]) -> Dict[str, Any]:
    """Answer the request that only leaves a record: a command is about to run inside of a job's instance."""
    return {}
