"""The requests stop and delete."""

import os
import signal
import time
from typing import List, Optional

from provision.node.docker import labels_of
from provision.node.files import Record, Refused, read_json, remove, remove_tree, write_json
from provision.node.jobs import mountpoints as node_mountpoints
from provision.node.jobs.leases import release_all
from provision.node.jobs.reaping import close_attempt, unsupervised
from provision.node.jobs.records import (
    ROOT,
    UNIT_FILES,
    attempt_folder,
    attempt_number,
    attempts_of,
    check_job_id,
    job_folder,
    job_name,
    unit_name,
)
from provision.node.jobs.runs import end_runs, job_runs, remove_run
from provision.node.jobs.supervisors import STOP_SIGNAL, signal_supervisor, supervised
from provision.node.jobs.units import job_units


def stop(request: Record) -> Record:
    """Request the end of a job's last attempt from its supervisor; without one, end its containers on this node.

    With ``attempt``, only if the last attempt on this node has this number; with ``id``, only if the job has this ID.
    """
    name = job_name(request)
    if os.path.isdir(job_folder(name)):
        check_job_id(request, name)
    attempts = attempts_of(name)
    if not attempts:
        return {"asked": False}
    attempt = attempts[-1]
    if request.get("attempt") is not None and attempt_number(request) != attempt:
        return {"asked": False}
    folder = attempt_folder(name, attempt)
    if os.path.exists(os.path.join(folder, "result.json")) and not supervised([(name, attempt)]):
        return {"asked": False}
    grace = request.get("grace")
    reason = str(request.get("reason") or "stopped")
    unsupervised_attempts = {(job, number) for job, number, _ in unsupervised([name])}
    if os.path.exists(os.path.join(folder, "keeper.json")) and (name, attempt) not in unsupervised_attempts:
        try:
            write_json(os.path.join(folder, "stop.json"), {"reason": reason, "grace": grace, "time": time.time()})
        except OSError:  # the disk is full
            if not signal_supervisor(folder, STOP_SIGNAL):
                raise
            return {"asked": True}
        signal_supervisor(folder, signal.SIGUSR1)
        return {"asked": True}
    token = str(read_json(os.path.join(folder, "attempt.json")).get("id"))
    end_runs(name, token, attempt, 15 if grace is None else float(grace))
    result = {"status": "STOPPED", "reason": reason, "code": "job.stopped", "params": {"text": reason}}
    return {"asked": close_attempt(name, attempt, result, "Stopped")}


def stored_runs(name: str, job: Record) -> Optional[List[Record]]:
    """Return the containers and units of a job; Docker need not be installed for a job that has no containers."""
    spec = job.get("spec")
    if isinstance(spec, dict) and spec.get("no_container") and not spec.get("tensorboard"):
        return job_units("job", name)
    return job_runs("job", name)


def delete(request: Record) -> Record:
    """Delete a job: its containers, keys, leases and folder; refuse this while it has a supervisor."""
    name = job_name(request)
    folder = job_folder(name)
    job = read_json(os.path.join(folder, "job.json"))
    token = str(request.get("id") or job.get("id") or "")
    if not os.path.isdir(folder) or (job and str(job.get("id") or "") != token):
        return {"deleted": False}
    if supervised([(name, attempt) for attempt in attempts_of(name)]):
        raise Refused("the job {} still runs on this node".format(name), "Stop it: provision stop {}".format(name))
    runs = stored_runs(name, job) if attempts_of(name) else []  # without an attempt, Docker need not be installed
    if runs is None:
        raise Refused("docker's engine does not answer", "systemctl status docker")
    for item in runs:
        if labels_of(item)[1] in ("", token):
            remove_run(item)
    node_mountpoints.remove_unused()  # mount points of units that a reboot ended
    for attempt in attempts_of(name):
        remove(os.path.join(UNIT_FILES, unit_name(name, attempt)))
    release_all(name, token)
    renamed = os.path.join(ROOT, ".new-{}-{}-{}".format(name, os.getpid(), int(time.time())))
    os.rename(folder, renamed)
    remove_tree(renamed)
    return {"deleted": True}
