"""The request report: the jobs of this node."""

import json
import os
import time
from typing import List, Optional, Tuple

from provision.node.files import Record, boot_id, names_in, read_json, read_text
from provision.node.jobs.leases import all_leases, gpu_leases
from provision.node.jobs.reaping import close_unsupervised, release_expired, unsupervised
from provision.node.jobs.records import (
    NAME,
    ROOT,
    RUN,
    attempt_folder,
    attempts_of,
    instances_of,
    job_folder,
    job_names,
)
from provision.node.jobs.runs import job_runs
from provision.node.jobs.supervisors import supervised

BRIEF = (
    "kind",
    "gpus",
    "workers",
    "priority",
    "labels",
    "tensorboard",
    "exclusive",
    "depends",
    "retry",
    "ttl_after_finished",
)
"""Fields of the specification that lists show."""
SETTLED = "settled"
"""The file of a job that has been reported as ended."""
WRITTEN = ("job.json", "queue.json", "attempts")
"""What is written in the folder of a job when it changes."""
STABLE_NS = 1000000000
LISTED = ("modelName", "modelVersion", "modelSource")
"""Annotations that lists show."""


def report(request: Record) -> Record:
    """Return the jobs of this node, after closing attempts without a job supervisor."""
    names, older = requested_names(request), 0
    if request.get("recent"):
        names, older = recent_names(names, int(request["recent"]))
    if next(unsupervised(names), None):
        close_unsupervised(job_runs(), names)
    release_expired()
    sweep_logins()
    return dict(reports(dict(request, names=names)), older=older)


def recent_names(names: List[str], count: int) -> Tuple[List[str], int]:
    """Return the names of the newest jobs and of all that may change, and the number of the others.

    A job is as new as its record, which a restart writes again.
    """
    written = {name: changed(f"{ROOT}/{name}/job.json") for name in names}  # os.path.join takes longer than the stat
    by_age = sorted(names, key=written.__getitem__, reverse=True)
    live = [name for name in by_age[count:] if not is_settled(name, written[name])]
    return by_age[:count] + live, max(len(by_age) - count, 0) - len(live)


def is_settled(name: str, written: int) -> bool:
    """Return whether a job, with a record of this time, was reported as ended, and nothing of it was written since."""
    folder = f"{ROOT}/{name}"
    return changed(f"{folder}/{SETTLED}") == max(
        written, changed(f"{folder}/queue.json"), changed(f"{folder}/attempts")
    )


def settle(document: Record, stamp: int) -> None:
    """Mark a job as ended from the report of it, if nothing more follows: no retry, and no end that is not confirmed.

    Args:
        document: the report.
        stamp: the last change of the job before it was read.
    """
    queue = document["queue"]
    is_final = not queue or (queue.get("state") in ("over", "failed", "stopped") and not queue.get("unconfirmed"))
    has_ended = not document["attempt"] or (document["result"] and not document["open"])
    path = os.path.join(ROOT, document["name"], SETTLED)
    is_stable = int(time.time() * 1e9) - stamp > STABLE_NS  # two changes can have one time
    if is_final and has_ended and (queue or document["attempt"]) and is_stable and changed(path) != stamp:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.utime(path, ns=(stamp, stamp))
        except OSError:
            pass  # the job was deleted, or the disk is full


def last_change(name: str) -> int:
    """Return when the record of a job was last written."""
    return max(changed(os.path.join(ROOT, name, item)) for item in WRITTEN)


def changed(path: str) -> int:
    """Return when a file was written, in nanoseconds; 0 if there is none."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def sweep_logins() -> None:
    """Remove the credentials of commands that were killed while they fetched code."""
    if any(name.startswith("code-") for name in names_in(RUN)):
        from provision.node.code import folders as code_folders

        try:
            code_folders.sweep(RUN)
        except OSError:
            pass  # the next request tries again


def requested_names(request: Record) -> List[str]:
    """Return the job names in a request, or all jobs of this node."""
    names = request.get("names")
    return job_names() if names is None else [name for name in names if isinstance(name, str) and NAME.match(name)]


def reports(request: Record) -> Record:
    """Return the jobs of this node."""
    documents = []
    for name in requested_names(request):
        stamp = last_change(name)
        document = brief_report(name) if request.get("brief") else full_report(name)
        if document:
            settle(document, stamp)
            documents.append(document)
    here = boot_id()
    active = supervised([(job["name"], job["attempt"]) for job in documents if job["open"]])
    for job in documents:
        job["boot_id"] = here
        without = "gone" if job["begun"] or job["result"] else "none"
        job["keeper"] = "active" if (job["name"], job["attempt"]) in active else without
        del job["open"], job["begun"]
    leases, tried = gpu_leases(all_leases()), read_json(os.path.join(RUN, "queue.lock")).get("tried")
    return {"boot_id": here, "now": time.time(), "jobs": documents, "leases": leases, "tried": tried}


def brief_report(name: str) -> Record:
    """Return the fields of a job that lists show, nothing if there is no such job."""
    document = full_report(name, brief=True)
    if document:
        spec = document["spec"]
        annotations = spec.get("annotations")
        document["spec"] = {key: spec[key] for key in BRIEF if spec.get(key)}
        if isinstance(annotations, dict):
            document["spec"]["annotations"] = {key: annotations[key] for key in LISTED if key in annotations}
    return document


def full_report(name: str, *, brief: bool = False) -> Record:
    """Return all that this node has recorded about a job, nothing if there is no such job."""
    folder = job_folder(name)
    job = read_json(os.path.join(folder, "job.json"))
    if not job:
        return {}
    attempts = attempts_of(name)
    attempt = attempts[-1] if attempts else 0
    path = attempt_folder(name, attempt)
    names = set(names_in(path)) if attempt else set()
    document: Record = {
        "name": name,
        "id": job.get("id"),
        "owner": job.get("owner"),
        "submitted": job.get("submitted"),
        "spec": job.get("spec") if isinstance(job.get("spec"), dict) else {},
        "queue": read_json(os.path.join(folder, "queue.json")),
        "attempt": attempt,
        "attempt_record": read_json(os.path.join(path, "attempt.json")) if attempt else {},
        "instances": instances_of(path, names),
        "result": (read_json(os.path.join(path, "result.json")) or None) if "result.json" in names else None,
        "ending": ending_of(path) if "state.json" in names and "result.json" not in names else None,
        "open": "keeper.json" in names,
        "begun": "state.json" in names,
        "stopping": "stop.json" in names,
    }
    if not brief:
        document["events"] = events_of(name)
        document["attempts"] = attempts
        document["nodes"] = read_json(os.path.join(folder, "nodes.json")).get("nodes", [])
        document.update({key: job[key] for key in ("signed", "signature") if isinstance(job.get(key), str)})
    return document


def ending_of(folder: str) -> Optional[Record]:
    """Return how an attempt will end here, from the state of its job supervisor; None while its end is not decided."""
    end = read_json(os.path.join(folder, "state.json")).get("end")
    return end if isinstance(end, dict) else None


def events_of(name: str) -> List[Record]:
    """Return a job's events, without incomplete lines."""
    events = []
    for line in read_text(os.path.join(ROOT, name, "events.jsonl")).splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events
