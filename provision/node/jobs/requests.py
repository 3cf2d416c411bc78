"""Answers one request about batch jobs on this node, and ends. README.md of `provision/jobs` lists the requests.

The request is one line of JSON on standard input. Only the modules that a request needs are imported, because each
request starts Python anew.
"""

import importlib
import json
import os
from typing import Any, Optional

from provision.node import audit as node_audit
from provision.node import files as node_files
from provision.node.files import Record, Refused
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
    "resume": "jobs.queue",
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
    "slurm_state": "slurm.controller",
    "slurm_report": "slurm.controller",
    "slurm_job": "slurm.controller",
    "slurm_submit": "slurm.controller",
    "slurm_cancel": "slurm.controller",
    "slurm_job_update": "slurm.controller",
    "slurm_node_update": "slurm.controller",
    "slurm_allocate": "slurm.controller",
    "slurm_seal": "slurm.compute",
    "slurm_node": "slurm.compute",
    "slurm_store": "slurm.compute",
    "slurm_gpus": "slurm.compute",
    "slurm_mark": "slurm.compute",
    "slurm_guard": "slurm.compute",
    "slurm_retry": "slurm.compute",
}
"""Request -> the module below `provision.node` with a function of this name."""


def main() -> int:
    """Answer the request on standard input and audit it; return the exit status."""
    do, request, job = "", {}, None  # type: str, Record, Optional[Record]
    try:
        request = json.loads(request_line().decode())
        do = request["do"]
        job = recorded_job(do, request)
        if do == "logs":  # it lasts as long as the output is read
            node_audit.of_request(do, request, job=job)
        answer = getattr(importlib.import_module("provision.node." + REQUESTS[do]), do)(request)
    except Refused as refusal:
        return refused(do, request, refusal, job)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as problem:
        from provision.node.jobs import storage as node_storage

        return refused(do, request, node_storage.refusal(problem), job)
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as problem:
        return refused(do, request, Refused("the request is invalid: {!r}".format(problem)), job)
    if answer is not None:
        node_audit.of_request(do, request, answer, job=job)
        print(json.dumps(answer))
    return 0


def recorded_job(do: str, request: Record) -> Any:
    """Return the job of an audited request, as it is recorded before the request is carried out."""
    name = request.get("name")
    if do == "reserve":
        return request.get("job")
    if not node_audit.is_audited(do) or not isinstance(name, str) or not node_records.NAME.match(name):
        return {}
    return node_files.read_json(os.path.join(node_records.job_folder(name), "job.json"))


def refused(do: Any, request: Any, refusal: Refused, job: Optional[Record] = None) -> int:
    """Answer that the request is refused; return the exit status."""
    if isinstance(request, dict) and isinstance(do, str) and do != "logs":
        node_audit.of_request(do, request, refused=refusal.answer["error"]["message"], job=job)
    print(json.dumps(refusal.answer))
    return 1


def request_line() -> bytes:
    """Return standard input up to a newline or its end; `read_ahead` gets the bytes that were read after it."""
    line = b""
    while b"\n" not in line:
        piece = os.read(0, 1 << 16)
        if not piece:
            break
        line += piece
    line, _, node_files.read_ahead = line.partition(b"\n")
    return line
