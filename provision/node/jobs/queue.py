"""Requests about names, the queue, secrets and packed code.

They are: upload, reserve, code, hold_queue, queue, queues, secrets, event, drain.
"""

import errno
import json
import os
import sys
import time

from provision.node import files as node_files
from provision.node.files import (
    LOCK_SECONDS,
    Refused,
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
    FILE,
    ROOT,
    RUN,
    UPLOAD_BYTES,
    add_event,
    drain_reason,
    existing_job_folder,
    job_folder,
    job_name,
    make_folders,
)
from provision.node.jobs.reports import brief_report

CODE = "code.tar.gz"
BEAT_SECONDS = 60  # of a command that said that it gives a sign of life, and gives none, the connection is half dead


def reserve(request):
    """Take a job's name and write the job down; a name that is taken stays as it is.

    When it was submitted is told by this node's clock, which is one for all who submit, and under a lock: whoever sees
    a job sees all that came before it.
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


def upload(request):
    """Store the packed code of a job that is about to be submitted: the bytes that follow the request."""
    make_folders()
    path, left = upload_path(request["id"]), int(request["size"])
    if not 0 < left <= UPLOAD_BYTES:
        raise Refused("packed code of {} bytes, {} are possible".format(left, UPLOAD_BYTES))
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            piece = node_files.read_ahead
            while left:
                piece = (piece or os.read(0, 1 << 20))[:left]
                if not piece:
                    break
                stream.write(piece)
                left, piece = left - len(piece), b""
            stream.flush()
            os.fsync(handle)
    except BaseException:
        remove(path)
        raise
    if left:
        remove(path)
        raise Refused("the code broke off {} bytes before its end".format(left))
    return {"stored": True}


def upload_path(token):
    """Return where packed code lies until its job is recorded; `sweep` removes what nobody records."""
    if not isinstance(token, str) or not FILE.match(token):
        raise Refused("{!r} is no id of a job".format(token))
    return os.path.join(ROOT, ".new-code-" + token)


def code(request):
    """Print the packed code of a job, as it was stored."""
    path = os.path.join(existing_job_folder(job_name(request)), CODE)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Refused("there is no packed code of this job here", "submit it again") from None
    try:
        for piece in iter(lambda: os.read(handle, 1 << 20), b""):
            sys.stdout.buffer.write(piece)
        sys.stdout.flush()
    finally:
        os.close(handle)


def sweep():
    """Remove what was never finished, or not wholly removed; what goes meanwhile by other hands is fine."""
    for item in names_in(ROOT):
        path = os.path.join(ROOT, item)
        try:
            old = item.startswith(".new-") and time.time() - os.stat(path).st_mtime > 3600
        except OSError:
            continue
        if old:
            remove_tree(path)


def hold_queue(request):
    """Hold the lock of whoever starts jobs until our input ends."""
    make_folders()
    path = os.path.join(RUN, "queue.lock")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not locked_within(handle, float(request.get("seconds") or 0)):
        by = read_json(path)
        since = by.get("monotonic")
        seconds = int(time.monotonic() - since) if isinstance(since, (int, float)) else None
        return {"held": False, "by": {"who": str(by.get("who", "")), "seconds": seconds, "time": by.get("time")}}
    told = {"who": str(request.get("who", "")), "time": time.time(), "monotonic": time.monotonic()}
    write_holder(handle, dict(told, tried=read_json(path).get("tried")))
    print(json.dumps({"held": True}), flush=True)
    if b"tried" in input_to_its_end(BEAT_SECONDS if request.get("beats") else None):
        write_holder(handle, dict(told, tried=told["time"]))
    return None


def write_holder(handle, told):
    """Write down who holds the queue, and when the last pass began that tried all that waits."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(told).encode(), 0)


def input_to_its_end(silence):
    """Return the last of our input when it ends, or when nothing came by it for so many seconds; None: for ever."""
    import select

    said = b""
    while select.select([0], [], [], silence)[0]:
        piece = os.read(0, 4096)
        if not piece:
            break
        said = (said + piece)[-64:]
    return said


def queue(request):
    """Write down how a job stands in the queue; ``over`` takes its secrets away, ``secrets`` puts them back.

    ``job`` replaces what was signed: who starts the job verifies it.

    With ``if_id``, ``if_state`` or ``if_attempt`` only where it stands so until now. ``confirmed`` are nodes that have
    confirmed the end of the job.
    """
    name = job_name(request)
    folder = existing_job_folder(name)
    with QueueLock(folder):
        before = read_json(os.path.join(folder, "queue.json"))
        if not stands_so(request, before, read_json(os.path.join(folder, "job.json"))):
            return {"written": False, "queue": before}
        now = dict(before if request.get("merge") else {}, **request["queue"])
        if now.get("state") == "started":
            keep_nodes(folder, now.get("nodes") or ())
        now["time"] = time.time()
        if now.get("state") == "stopped":
            now.update(requested_end(folder, before, now, request.get("confirmed") or ()))
        else:
            for key in ("unconfirmed", "deleted"):
                now.pop(key, None)
        if now.get("state") in ("pending", "held") or now.get("attempt") != before.get("attempt"):
            now.pop("result", None)  # of the attempt before
        durable = now.get("state") != "over"  # which the next pass finds out again
        write_json(os.path.join(folder, "queue.json"), now, durable=durable)
        if request.get("job"):  # signed again by its owner, with the secrets of the next attempt
            path = os.path.join(folder, "job.json")
            write_json(path, dict(read_json(path), **{key: request["job"][key] for key in ("signed", "signature")}))
    if request.get("event"):
        event(request)
    if any((request.get("secrets") or {}).values()):
        write_json(os.path.join(folder, "secrets.json"), request["secrets"])
    if request.get("over"):
        remove(os.path.join(folder, "secrets.json"))
    return {"written": True}


def requested_end(folder, before, now, confirmed):
    """Return what is recorded of a requested end: when, whether for deletion, and the nodes that have not confirmed it.

    At first these are all nodes that the job was ever given to. A deletion asks all of them again, because a node
    confirms a deletion only when it has nothing of the job any more.
    """
    again = before.get("state") == "stopped"
    deleted = bool(now.get("deleted") or (again and before.get("deleted")))
    if again and isinstance(before.get("unconfirmed"), list) and deleted == bool(before.get("deleted")):
        left = before["unconfirmed"]
    else:
        left = set(read_json(os.path.join(folder, "nodes.json")).get("nodes", [])) | set(before.get("nodes") or ())
    found = {"deleted": deleted, "unconfirmed": sorted(name for name in left if name not in confirmed)}
    return dict(found, time=before["time"]) if again and "time" in before else found


def keep_nodes(folder, names):
    """Write down which nodes a job was ever given to: they are asked about it."""
    path = os.path.join(folder, "nodes.json")
    known = read_json(path).get("nodes", [])
    if set(names) - set(known):
        write_json(path, {"nodes": sorted({*known, *names})})


def queues(request):
    """Write down how several jobs stand in the queue; one that is gone keeps none of the others back."""
    return {"written": [written(one) for one in request["many"]]}


def written(request):
    """Write down how one of several jobs stands; return whether it could be."""
    try:
        return queue(request)["written"]
    except (Refused, OSError):
        return False


class QueueLock:
    """Holds one job's queue.json against other writers; the lock is of its folder."""

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        self.handle = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        if not locked_within(self.handle, LOCK_SECONDS):
            os.close(self.handle)
            raise Refused("another command has held the job's place in the queue for {} s".format(LOCK_SECONDS))
        return self

    def __exit__(self, *_):
        os.close(self.handle)


def stands_so(request, queue, job):
    """Return whether a job stands in the queue as a request takes it to."""
    if request.get("if_id") is not None and str(job.get("id")) != str(request["if_id"]):
        return False
    if request.get("if_state") is not None and queue.get("state") not in request["if_state"]:
        return False
    return request.get("if_attempt") is None or int(queue.get("attempt") or 0) == int(request["if_attempt"])


def secrets(request):
    """Return a job's secrets, none when it had none or is over."""
    return read_json(os.path.join(existing_job_folder(job_name(request)), "secrets.json"))


def event(request):
    """Append an event."""
    name, told = job_name(request), request["event"]
    existing_job_folder(name)
    kind = "Warning" if told.get("type") == "Warning" else "Normal"
    add_event(name, str(told.get("source", "")), str(told.get("message", "")), kind, told.get("time"))
    return {"written": True}


def drain(request):
    """Take no new jobs, or with an empty reason take them again."""
    make_folders()
    path = os.path.join(ROOT, ".drained")
    if request.get("reason"):
        write_file(path, str(request["reason"]) + "\n")
    else:
        remove(path)
    return {"drained": drain_reason()}
