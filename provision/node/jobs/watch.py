"""The request watch: waits until something happens on this node that may let a job start."""

import os
import select
import time

from provision.node.files import read_json
from provision.node.jobs.leases import lease_path
from provision.node.jobs.records import attempt_folder, attempt_number, job_folder, job_name, job_names

EVERY_SECONDS = 1
TURN_SECONDS = 3  # whoever hands a job in tries it, and may wait for the queue only where others hold it


def watch(request):
    """Return whether something happened before its time was over; our input's end is that of our time too."""
    leases = [lease_path(str(name)) for name in request.get("leases") or ()]
    results = [result_of(attempt) for attempt in request.get("attempts") or ()]
    deadline = time.monotonic() + float(request["seconds"])
    while not changed(leases, results, request):
        left = deadline - time.monotonic()
        if left <= 0 or select.select([0], [], [], min(left, EVERY_SECONDS))[0]:
            return {"changed": False}
    return {"changed": True}


def changed(leases, results, request):
    """Return whether a lease is gone, an attempt is over, or a job is new."""
    if any(not os.path.exists(path) for path in leases) or any(map(os.path.exists, results)):
        return True
    return request.get("since") is not None and any_new(float(request["since"]), request.get("known") or ())


def result_of(attempt):
    """Return the file by which an attempt is over on this node."""
    return os.path.join(attempt_folder(job_name(attempt), attempt_number(attempt)), "result.json")


def any_new(since, known):
    """Return whether since a time a job came of which no pass says why it waits, or one began that is not known."""
    before = time.time() - TURN_SECONDS
    for name in job_names():
        path = os.path.join(job_folder(name), "queue.json")
        try:
            recent = since < os.stat(path).st_mtime < before
        except OSError:
            continue
        queue = read_json(path) if recent else {}
        if queue.get("state") == "pending" and not queue.get("reason"):
            return True
        if queue.get("state") == "started" and name not in known:
            return True
    return False
