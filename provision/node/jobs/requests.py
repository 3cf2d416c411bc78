"""Answers one request about batch jobs on this node, and ends. README.md of `provision/jobs` has the requests.

It arrives over SSH on standard input with its parts, the modules `node_*.py`, followed by the request as one line of
JSON, and is root's. Only the parts that a request needs are compiled, because each request starts Python anew. Python
3.6 or newer, and nothing else.
"""

import json
import os

from provision.node import audit as node_audit
from provision.node import files as node_files
from provision.node.files import Refused
from provision.node.jobs import records as node_records

REQUESTS = {
    "upload": "node_queue",
    "reserve": "node_queue",
    "code": "node_queue",
    "hold_queue": "node_queue",
    "queue": "node_queue",
    "queues": "node_queue",
    "secrets": "node_queue",
    "event": "node_queue",
    "drain": "node_queue",
    "look": "node_look",
    "watch": "node_watch",
    "report": "node_reports",
    "lease": "node_leasing",
    "hold": "node_leasing",
    "release": "node_leasing",
    "renew": "node_leasing",
    "prepare": "node_prepare",
    "start": "node_start",
    "logs": "node_logs",
    "stop": "node_ending",
    "delete": "node_ending",
    "attached": "node_audit",
}
"""Request -> the part that has a function of its name."""


def main():
    """Answer the request on standard input, and leave a record of it."""
    do, request, job = "", {}, {}
    try:
        request = json.loads(request_line().decode())
        do = request["do"]
        job = recorded_job(do, request)
        if do == "logs":  # which goes on for as long as somebody reads
            node_audit.of_request(do, request, job=job)
        answer = getattr(__import__(REQUESTS[do]), do)(request)
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
