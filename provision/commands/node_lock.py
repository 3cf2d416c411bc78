"""Requests to a node about its lock and its history, and the meaning of its answers. Nothing is executed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.documents.locks import LockAnswer, LookAnswer, UnlockAnswer, entries_of
from provision.errors import LockedError, NodeError, ProvisionError
from provision.model.history import Holder, NodeLockState, Unlocked

BEAT_SECONDS = 20.0
"""Interval of the heartbeats that a lock holder receives."""
TIMES: dict[str, float] = {"silence": 90, "linger": 600, "quiet": 3}
"""Seconds: a lock holder without a heartbeat for ``silence`` assumes that the controller is dead. It then waits at most
``linger`` for running tasks, which have ended when none was seen for ``quiet``: tasks have pauses between them."""
PLACES: dict[str, Any] = {
    "folders": ["/run/lock", "/var/lock", "/var/lib/provision"],
    "history": "/var/lib/provision/history.jsonl",
    "marks": [".pyz\0reload", "AnsiballZ", "ansible-tmp", "BECOME-SUCCESS-", "&& sleep 0"],
}
"""The lock is in the first existing folder. Marks identify command lines of Ansible and of
``reload``, whose words are separated by NUL; the last one is at the end of a command line."""
_PATIENCE_SECONDS = 5.0
"""Seconds between SIGTERM and SIGKILL for a lock holder."""
_REMEDIES = {
    "EROFS": "Its file system is mounted read-only. Check its disk (dmesg), repair it, and mount it read-write.",
    "ENOSPC": "Free space there (df -h shows which file system is full).",
    "EDQUOT": "Free space there (df -h shows which file system is full).",
    "EACCES": "Check that the connection is that of root.",
}


def keep_request(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request for the lock."""
    return {"do": "keep", "holder": dict(holder), **PLACES, **TIMES}


def look_request(entries: int = 0) -> dict[str, Any]:
    """Return the request for the lock holder and the newest `entries` applies."""
    return {"do": "look", "entries": entries, **PLACES}


def unlock_request(holder: Holder, who: str) -> dict[str, Any]:
    """Return the request to end this lock holder, and no other."""
    message = f"unlocked by {who}"
    return {"do": "unlock", "id": holder.id, "message": message, "patience": _PATIENCE_SECONDS, **PLACES}


def read_lock(node: str, answer: LockAnswer, own_id: str) -> tuple[ProvisionError | None, str]:
    """Return why the lock was not acquired, None if it was; and a warning, which may be empty."""
    if answer.locked is not None:
        return None, "" if answer.usual else f"there is no {PLACES['folders'][0]}; the lock is {answer.locked}"
    if answer.held:
        holder = answer.holder.holder() if answer.holder else None
        if holder and holder.id == own_id:
            text = f"the inventory names this machine twice: it is {holder.node}, too"
            return NodeError(text, node=node, remedy="Take one of the two out of the inventory."), ""
        return locked_error(node, holder), ""
    return _trouble(node, "the lock could not be taken", answer), ""


def locked_error(node: str, holder: Holder | None) -> LockedError:
    """Return the error that another process has locked the node."""
    if holder is None:
        text = "in use: another program has locked it, or somebody has just begun"
        return LockedError(text, node=node, remedy="Wait until it has ended.")
    remedy = f"Wait until it has ended, or run `provision unlock {node}` when that process is known to be dead."
    error = LockedError(holder.describe(), node=node, remedy=remedy)
    error.passing = bool(holder.gone)
    return error


def read_lock_state(node: str, answer: LookAnswer) -> NodeLockState:
    """Return the state of a node's lock.

    Raises:
        NodeError: the node could not read its own files.
    """
    if answer.held is None:
        raise _trouble(node, "its lock and its history could not be read", answer)
    return NodeLockState(
        held=answer.held,
        holder=answer.holder.holder() if answer.holder else None,
        working=tuple(map(str, answer.working)),
        entries=entries_of(answer.entries),
    )


def read_unlocked(node: str, answer: UnlockAnswer, holder: Holder) -> Unlocked:
    """Return the result of unlocking."""
    if answer.unlocked:
        text = f"the lock of {holder.user} on {holder.host} is gone"
        if answer.working:
            text += f"; Ansible still works there: {', '.join(answer.working)}"
        if answer.trouble:
            text += f"; its history could not be written: {answer.trouble}"
        return Unlocked(node, "unlocked", text, holder)
    if answer.free:
        return Unlocked(node, "free", "the lock has been given up meanwhile", holder)
    if answer.other:
        other = answer.other.holder()
        return Unlocked(node, "refused", f"meanwhile it is {other.describe()}", other, "Check it before you unlock it.")
    if answer.stuck is not None:
        remedy = "Its disk may hang (dmesg); a restart of the node ends it."
        return Unlocked(node, "failed", f"process {answer.stuck} there does not end", holder, remedy)
    return strange(node, holder)


def strange(node: str, holder: Holder | None = None) -> Unlocked:
    """Return the result for a lock that another program holds."""
    remedy = f"Find the process: fuser -v {PLACES['folders'][0]}/provision.lock"
    return Unlocked(node, "refused", "another program holds the lock", holder, remedy)


def _trouble(node: str, what: str, answer: LockAnswer | LookAnswer) -> NodeError:
    remedy = _REMEDIES.get(answer.errno, "Check that file on the node.")
    return NodeError(f"{what}: {answer.failed or 'no valid answer'}", node=node, remedy=remedy)
