"""Requests about names, the queue, secrets and packed code.

They are: upload, reserve, code, hold_queue, queue, queues, secrets, event, drain, resume.
"""

import errno
import json
import os
import re
import sys
import time
from typing import Any, Container, Iterable, Optional

from provision.node.files import (
    LOCK_SECONDS,
    Record,
    Refused,
    copy_input,
    locked_within,
    names_in,
    read_json,
    remove,
    remove_tree,
    write_file,
    write_json,
)
from provision.node.jobs.leases import LeaseLock
from provision.node.jobs.records import (
    DRAINED,
    FILE,
    ROOT,
    RUN,
    UPLOAD_BYTES,
    add_event,
    drain_owner,
    drain_reason,
    drain_text,
    existing_job_folder,
    job_folder,
    job_name,
    make_folders,
)
from provision.node.jobs.reports import brief_report

CODE = "code.tar.gz"
OWNER = re.compile(r"[a-z][a-z_]{0,30}\Z")  # of a drain
BEAT_SECONDS = 60  # a command that promised heartbeats and sends none for so long has lost its connection


def reserve(request: Record) -> Record:
    """Reserve a job's name and record the job; do not change a job that has the name.

    The time of submission is by this node's clock, for all controllers, and under a lock, so that a request that sees a
    job also sees all earlier ones.
    """
    import uuid

    name = job_name(request)
    make_folders()
    sweep()
    new = os.path.join(ROOT, ".new-{}-{}".format(name, uuid.uuid4().hex))
    os.mkdir(new, 0o700)
    try:
        write_json(os.path.join(new, "queue.json"), dict(request.get("queue") or {}, time=time.time()))
        if any((request.get("secrets") or {}).values()):
            write_json(os.path.join(new, "secrets.json"), request["secrets"])
        if request.get("upload"):
            os.rename(upload_path(request["upload"]), os.path.join(new, CODE))
        with LeaseLock():
            write_json(os.path.join(new, "job.json"), dict(request["job"], submitted=time.time()))
            os.rename(new, job_folder(name))
    except OSError as problem:
        if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return {"reserved": False, "job": brief_report(name)}
    finally:
        remove_tree(new)
    return {"reserved": True}


def upload(request: Record) -> Record:
    """Store the packed code of a job that is about to be submitted: the bytes that follow the request."""
    make_folders()
    path, size = upload_path(request["id"]), int(request["size"])
    if not 0 < size <= UPLOAD_BYTES:
        raise Refused("the packed code has {} bytes; at most {} are possible".format(size, UPLOAD_BYTES))
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            missing = copy_input(stream, size)
            stream.flush()
            os.fsync(handle)
    except BaseException:
        remove(path)
        raise
    if missing:
        remove(path)
        raise Refused("the transfer of the code broke off {} bytes before its end".format(missing))
    return {"stored": True}


def upload_path(token: Any) -> str:
    """Return where packed code is stored before its job is recorded; `sweep` removes it if that never happens."""
    if not isinstance(token, str) or not FILE.match(token):
        raise Refused("{!r}: invalid job ID".format(token))
    return os.path.join(ROOT, ".new-code-" + token)


def code(request: Record) -> None:
    """Print the packed code of a job."""
    path = os.path.join(existing_job_folder(job_name(request)), CODE)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Refused("there is no packed code of this job on the node", "Submit the job again.") from None
    try:
        for piece in iter(lambda: os.read(handle, 1 << 20), b""):
            sys.stdout.buffer.write(piece)
        sys.stdout.flush()
    finally:
        os.close(handle)


def sweep() -> None:
    """Remove incomplete jobs, uploads and deletions older than an hour, also while other processes remove them."""
    for item in names_in(ROOT):
        path = os.path.join(ROOT, item)
        try:
            is_old = item.startswith(".new-") and time.time() - os.stat(path).st_mtime > 3600
        except OSError:
            continue
        if is_old:
            remove_tree(path)


def hold_queue(request: Record) -> Optional[Record]:
    """Hold the lock of scheduling passes until standard input ends."""
    make_folders()
    path = os.path.join(RUN, "queue.lock")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not locked_within(handle, float(request.get("seconds") or 0)):
        by = read_json(path)
        since = by.get("monotonic")
        seconds = int(time.monotonic() - since) if isinstance(since, (int, float)) else None
        return {"held": False, "by": {"who": str(by.get("who", "")), "seconds": seconds, "time": by.get("time")}}
    now = time.time()
    holder = {"who": str(request.get("who", "")), "time": now, "monotonic": time.monotonic()}
    write_holder(handle, dict(holder, tried=read_json(path).get("tried")))
    print(json.dumps({"held": True}), flush=True)
    if b"tried" in last_input(BEAT_SECONDS if request.get("beats") else None):
        write_holder(handle, dict(holder, tried=now))
    return None


def write_holder(handle: int, holder: Record) -> None:
    """Write the holder of the lock, and when the last pass began that tried all waiting jobs."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(holder).encode(), 0)


def last_input(silence: Optional[float]) -> bytes:
    """Return the last bytes of standard input when it ends, or has been silent for so many seconds; None: no limit."""
    import select

    last = b""
    while select.select([0], [], [], silence)[0]:
        piece = os.read(0, 4096)
        if not piece:
            break
        last = (last + piece)[-64:]
    return last


def queue(request: Record) -> Record:
    """Change the state of a job in the queue.

    ``over`` removes the job's secrets, ``secrets`` restores them. ``job`` replaces the signed text: the start verifies
    it. With ``if_id``, ``if_state``, ``if_attempt`` or ``if_engine_job``, nothing changes unless the current state
    matches. ``confirmed`` are nodes that have confirmed the end of the job.
    """
    name = job_name(request)
    folder = existing_job_folder(name)
    with QueueLock(folder):
        before = read_json(os.path.join(folder, "queue.json"))
        if not matches(request, before, read_json(os.path.join(folder, "job.json"))):
            return {"written": False, "queue": before}
        now = dict(before if request.get("merge") else {}, **request["queue"])
        if now.get("state") == "started":
            record_nodes(folder, now.get("nodes") or ())
        now["time"] = time.time()
        if now.get("state") == "stopped":
            now.update(requested_end(folder, before, now, request.get("confirmed") or ()))
        else:
            for key in ("unconfirmed", "deleted"):
                now.pop(key, None)
        if now.get("state") in ("pending", "held") or now.get("attempt") != before.get("attempt"):
            now.pop("result", None)  # of the attempt before
        durable = now.get("state") != "over"  # the next pass detects that again
        write_json(os.path.join(folder, "queue.json"), now, durable=durable)
        if request.get("job"):  # its owner signed it again, with the secrets of the next attempt
            path = os.path.join(folder, "job.json")
            write_json(path, dict(read_json(path), **{key: request["job"][key] for key in ("signed", "signature")}))
    if request.get("event"):
        event(request)
    if any((request.get("secrets") or {}).values()):
        write_json(os.path.join(folder, "secrets.json"), request["secrets"])
    if request.get("over"):
        remove(os.path.join(folder, "secrets.json"))
    return {"written": True}


def requested_end(folder: str, before: Record, now: Record, confirmed: Container[str]) -> Record:
    """Return the record of a requested end: its time, whether it is a deletion, and the nodes without confirmation.

    At first these are all nodes that the job ever had. A deletion asks all of them again, because a node confirms a
    deletion only when it has no record of the job any more.
    """
    again = before.get("state") == "stopped"
    deleted = bool(now.get("deleted") or (again and before.get("deleted")))
    if again and isinstance(before.get("unconfirmed"), list) and deleted == bool(before.get("deleted")):
        nodes: Iterable[str] = before["unconfirmed"]
    else:
        nodes = set(read_json(os.path.join(folder, "nodes.json")).get("nodes", [])) | set(before.get("nodes") or ())
    record = {"deleted": deleted, "unconfirmed": sorted(name for name in nodes if name not in confirmed)}
    return dict(record, time=before["time"]) if again and "time" in before else record


def record_nodes(folder: str, names: Iterable[str]) -> None:
    """Record the nodes that a job ever had: requests about the job go to them."""
    path = os.path.join(folder, "nodes.json")
    known = set(read_json(path).get("nodes", []))
    if not known.issuperset(names):
        write_json(path, {"nodes": sorted(known.union(names))})


def queues(request: Record) -> Record:
    """Change the states of several jobs in the queue; a missing job does not prevent the other changes."""
    return {"written": [is_written(one) for one in request["many"]]}


def is_written(request: Record) -> bool:
    """Change the state of one of several jobs; return whether this succeeded."""
    try:
        return bool(queue(request)["written"])
    except (Refused, OSError):
        return False


class QueueLock:
    """Locks one job's queue.json against other writers; the lock is on the job's folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __enter__(self) -> "QueueLock":  # noqa: PYI034 - typing.Self is of Python 3.11
        self.handle = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        if not locked_within(self.handle, LOCK_SECONDS):
            os.close(self.handle)
            raise Refused("another command has locked the job's state in the queue for {} s".format(LOCK_SECONDS))
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)


def matches(request: Record, queue: Record, job: Record) -> bool:
    """Return whether a job is in the state that a request expects."""
    if request.get("if_id") is not None and str(job.get("id")) != str(request["if_id"]):
        return False
    if request.get("if_state") is not None and queue.get("state") not in request["if_state"]:
        return False
    if request.get("if_engine_job") is not None and int(queue.get("engine_job") or 0) not in request["if_engine_job"]:
        return False
    return request.get("if_attempt") is None or int(queue.get("attempt") or 0) == int(request["if_attempt"])


def secrets(request: Record) -> Record:
    """Return a job's secrets, none if it has none or has finished."""
    return read_json(os.path.join(existing_job_folder(job_name(request)), "secrets.json"))


def event(request: Record) -> Record:
    """Append an event."""
    name, entry = job_name(request), request["event"]
    existing_job_folder(name)
    kind = "Warning" if entry.get("type") == "Warning" else "Normal"
    add_event(name, str(entry.get("source", "")), str(entry.get("message", "")), kind, entry.get("time"))
    return {"written": True}


def drain(request: Record) -> Record:
    """Drain the node: it grants no new leases. A program (`owner`) does not replace the drain of others."""
    reason, owner = str(request.get("reason") or "").strip(), str(request.get("owner") or "")
    if not reason:
        raise Refused("the node cannot be drained without a reason")
    if owner and not OWNER.match(owner):
        raise Refused("the owner of a drain is not valid")
    make_folders()
    if not (owner and drain_reason() and drain_owner() != owner):
        write_file(DRAINED, drain_text(reason, owner))
    return {"drained": drain_reason(), "owner": drain_owner()}


def resume(request: Record) -> Record:
    """Let a drained node grant leases again. A program (`owner`) resumes only what it drained."""
    owner = str(request.get("owner") or "")
    if not owner or drain_owner() == owner:
        remove(DRAINED)
    return {"drained": drain_reason(), "owner": drain_owner()}
