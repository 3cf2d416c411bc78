"""Answers one request about batch jobs on this node, and ends. README.md of `provision/jobs` has the requests.

The request is one line of JSON on standard input. Only the modules that a request needs are imported, because each
request starts Python anew.
"""

import importlib
import json
import os

from provision.node import audit as node_audit
from provision.node import files as node_files
from provision.node.files import Refused
from provision.node.jobs import records as node_records

REQUESTS = {
    "upload": "jobs.queue",
    "reserve": "jobs.queue",
    "code": "jobs.queue",
    "hold_queue": "jobs.queue",
    "queue": "jobs.queue",
    "queues": "jobs.queue",
    "secrets": "jobs.queue",
    "event": "jobs.queue",
    "drain": "jobs.queue",
    "look": "jobs.snapshot",
    "watch": "jobs.watch",
    "report": "jobs.reports",
    "lease": "jobs.leasing",
    "hold": "jobs.leasing",
    "release": "jobs.leasing",
    "renew": "jobs.leasing",
    "prepare": "jobs.prepare",
    "start": "jobs.start",
    "logs": "jobs.logs",
    "stop": "jobs.ending",
    "delete": "jobs.ending",
    "attached": "audit",
}
"""Request -> the module below `provision.node` that has a function of its name."""


def main():
    """Answer the request on standard input, and leave a record of it."""
    do, request, job = "", {}, {}
    try:
        request = json.loads(request_line().decode())
        do = request["do"]
        job = recorded_job(do, request)
        if do == "logs":  # which goes on for as long as somebody reads
            node_audit.of_request(do, request, job=job)
        answer = getattr(importlib.import_module("provision.node." + REQUESTS[do]), do)(request)
    except Refused as refusal:
        return refused(do, request, refusal, job)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as problem:
        from provision.node.jobs import storage as node_storage  # needed by few requests

        return refused(do, request, node_storage.refusal(problem), job)
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as problem:
        return refused(do, request, Refused("the request makes no sense: {!r}".format(problem)), job)
    if answer is not None:
        node_audit.of_request(do, request, answer, job=job)
        print(json.dumps(answer))
    return 0


def recorded_job(do, request):
    """Return the job of a request that is audited, as it is recorded before the request is carried out."""
    name = request.get("name")
    if do == "reserve":
        return request.get("job")
    if not node_audit.is_audited(do) or not isinstance(name, str) or not node_records.NAME.match(name):
        return {}
    return node_files.read_json(os.path.join(node_records.job_folder(name), "job.json"))


def refused(do, request, refusal, job=None):
    """Answer that the request is refused."""
    if isinstance(request, dict) and isinstance(do, str) and do != "logs":
        node_audit.of_request(do, request, refused=refusal.answer["error"]["message"], job=job)
    print(json.dumps(refusal.answer))
    return 1


def request_line():
    """Return our input up to a newline or its end; what was read of the rest is kept for the request."""
    line = b""
    while b"\n" not in line:
        piece = os.read(0, 1 << 16)
        if not piece:
            break
        line += piece
    line, _, node_files.read_ahead = line.partition(b"\n")
    return line
