"""The request watch: wait until a change on this node may let a job start."""

import os
import select
import time
from typing import Container, Iterable

from provision.node.files import Record, read_json
from provision.node.jobs.leases import lease_path
from provision.node.jobs.records import attempt_folder, attempt_number, job_folder, job_name, job_names

EVERY_SECONDS = 1
TURN_SECONDS = 3  # a command that submits a job also tries to start it, and may only wait for the lock of the queue


def watch(request: Record) -> Record:
    """Return whether a change happened in time; the end of standard input ends the time too."""
    leases = [lease_path(str(name)) for name in request.get("leases") or ()]
    results = [result_path(attempt) for attempt in request.get("attempts") or ()]
    deadline = time.monotonic() + float(request["seconds"])
    while not has_changed(leases, results, request):
        left = deadline - time.monotonic()
        if left <= 0 or select.select([0], [], [], min(left, EVERY_SECONDS))[0]:
            return {"changed": False}
    return {"changed": True}


def has_changed(leases: Iterable[str], results: Iterable[str], request: Record) -> bool:
    """Return whether a lease was released, an attempt has finished, or a job is new."""
    if any(not os.path.exists(path) for path in leases) or any(map(os.path.exists, results)):
        return True
    return request.get("since") is not None and has_new_job(float(request["since"]), request.get("known") or ())


def result_path(attempt: Record) -> str:
    """Return the file that exists when an attempt has finished on this node."""
    return os.path.join(attempt_folder(job_name(attempt), attempt_number(attempt)), "result.json")


def has_new_job(since: float, known: Container[str]) -> bool:
    """Return whether a job is waiting without a reason of a scheduling pass, or an unknown one has started."""
    before = time.time() - TURN_SECONDS
    for name in job_names():
        path = os.path.join(job_folder(name), "queue.json")
        try:
            is_recent = since < os.stat(path).st_mtime < before
        except OSError:
            continue
        queue = read_json(path) if is_recent else {}
        if queue.get("state") == "pending" and not queue.get("reason"):
            return True
        if queue.get("state") == "started" and name not in known:
            return True
    return False
