"""The request report: what this node knows of its jobs."""

import json
import os
import time

from provision.node.files import boot_id, names_in, read_json, read_text
from provision.node.jobs.leases import all_leases, gpu_leases
from provision.node.jobs.reaping import close_unwatched, reap_old, unwatched
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

BRIEF = ("kind", "gpus", "workers", "priority", "labels", "tensorboard", "exclusive", "depends", "retry")
BRIEF += ("ttl_after_finished",)
LISTED = ("modelName", "modelVersion", "modelSource")
"""Annotations that lists show."""


def report(request):
    """Return what this node knows of its jobs, after it has closed those that nothing watches over any more."""
    names = wanted(request)
    if next(unwatched(names), None):
        close_unwatched(job_runs(), names)
    reap_old()
    sweep_logins()
    return reports(dict(request, names=names))


def sweep_logins():
    """Remove the logins of commands that were killed while they fetched code."""
    if any(name.startswith("code-") for name in names_in(RUN)):
        from provision.node.code import folders as code_folders

        try:
            code_folders.sweep(RUN)
        except OSError:
            pass  # the next request tries again


def wanted(request):
    """Return the names of the jobs that are asked for, all without any."""
    names = request.get("names")
    return job_names() if names is None else [name for name in names if isinstance(name, str) and NAME.match(name)]


def reports(request):
    """Return what this node knows of its jobs."""
    known = wanted(request)
    open_ones, found, here = [], [], boot_id()
    for name in known:
        told = brief_report(name) if request.get("brief") else full_report(name)
        if told:
            told["boot_id"] = here
            found.append(told)
            if told.pop("open"):
                open_ones.append((name, told["attempt"]))
    active = supervised(open_ones)
    for told in found:
        without = "gone" if told.pop("begun") or told["result"] else "none"
        told["keeper"] = "active" if (told["name"], told["attempt"]) in active else without
    leases, tried = gpu_leases(all_leases()), read_json(os.path.join(RUN, "queue.lock")).get("tried")
    return {"boot_id": here, "now": time.time(), "jobs": found, "leases": leases, "tried": tried}


def brief_report(name):
    """Return a job without what only a look at it alone needs; nothing where there is none."""
    told = full_report(name, brief=True)
    if told:
        spec = told["spec"]
        remarks = spec.get("annotations")
        told["spec"] = {key: spec[key] for key in BRIEF if spec.get(key)}
        if isinstance(remarks, dict):
            told["spec"]["annotations"] = {key: remarks[key] for key in LISTED if key in remarks}
    return told


def full_report(name, *, brief=False):
    """Return all that this node knows of a job, nothing where there is none."""
    folder = job_folder(name)
    job = read_json(os.path.join(folder, "job.json"))
    if not job:
        return {}
    attempts = attempts_of(name)
    attempt = attempts[-1] if attempts else 0
    there = attempt_folder(name, attempt)
    names = set(names_in(there)) if attempt else set()
    told = {
        "name": name,
        "id": job.get("id"),
        "owner": job.get("owner"),
        "submitted": job.get("submitted"),
        "spec": job.get("spec") if isinstance(job.get("spec"), dict) else {},
        "queue": read_json(os.path.join(folder, "queue.json")),
        "attempt": attempt,
        "attempt_record": read_json(os.path.join(there, "attempt.json")) if attempt else {},
        "instances": instances_of(there, names),
        "result": (read_json(os.path.join(there, "result.json")) or None) if "result.json" in names else None,
        "open": "keeper.json" in names,
        "begun": "state.json" in names,
        "stopping": "stop.json" in names,
    }
    if not brief:
        told["events"] = events_of(name)
        told["attempts"] = attempts
        told["nodes"] = read_json(os.path.join(folder, "nodes.json")).get("nodes", [])
        told.update({key: job[key] for key in ("signed", "signature") if isinstance(job.get(key), str)})
    return told


def events_of(name):
    """Return a job's events; a line that was cut off is left out."""
    found = []
    for line in read_text(os.path.join(ROOT, name, "events.jsonl")).splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
