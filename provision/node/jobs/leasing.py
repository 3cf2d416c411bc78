"""Requests about leases: lease, hold, renew, release."""

import json
import os
import select
import signal
import time

from provision.node.files import PROC, Refused, names_in, read_json
from provision.node.jobs.gpus import Gpus
from provision.node.jobs.leases import PORT, LeaseLock, Renewal, belongs_to, release_all, renew_leases, write_lease
from provision.node.jobs.reaping import reaped, supervised_leases
from provision.node.jobs.records import attempt_folder, attempt_number, drain_reason, job_name, remove_secrets
from provision.node.jobs.runs import job_runs
from provision.node.jobs.supervisors import supervised

LINGER_SECONDS = 60  # what a job of `run` may take to end when nobody holds its leases any more
START_SECONDS = 5  # so young is the lease of a job of `run` that may still give it back, refused by another node
BEAT_SECONDS = 60  # of a command that said that it gives a sign of life, and gives none, the connection is half dead


def lease(request):
    """Lease GPUs to a job's instances: all of them, or none."""
    job, attempt, wanted = job_name(request, "job"), attempt_number(request), request["leases"]
    if drain_reason() and not request.get("force"):
        raise Refused(
            "the node is drained: {}".format(drain_reason()), "`provision node resume` lets it take jobs again"
        )
    if not wanted:
        return {"taken": {}}
    gpus, containers = Gpus(), job_runs()
    seen = gpus.state(containers)
    if seen.gpus is None:
        raise Refused("what the GPUs are doing is not known: {}".format(seen.gpu_error))
    family = families(seen.gpus)
    unknown = sorted(set(wanted) - set(family))
    if unknown:
        raise Refused("there is no GPU {} on this node (any more)".format(unknown[0]))
    living = supervised_leases(containers)
    with LeaseLock():
        leases = {
            name: held
            for name, held in reaped(containers, living).items()
            if not belongs_to(held, job, request["id"], attempt)
        }
        taken = {uuid: held for uuid in wanted for held in [taken_by(uuid, family, leases, seen.foreign)] if held}
        for uuid, instance in sorted(wanted.items()) if not taken else ():
            write_lease(uuid, {"job": job, "id": request["id"], "attempt": attempt}, instance)
    return {"taken": taken}


def hold(request):
    """Lease GPUs, the first ``count`` of this node unless ``leases`` names them, for as long as our input is open.

    With ``beats`` no longer than a minute after the last byte of it: its sender may have lost its power.
    With ``patience`` (seconds) jobs that start at the same time are waited for; ``starting`` tells of those.
    Then, when no process carries the job's mark any more (its supervisor may still end it), they are given back.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of a controller on this node, which has closed our input
    if not request.get("leases"):
        gpus = Gpus().state(job_runs()).gpus or []
        first = sorted(gpus, key=lambda gpu: gpu["index"])[: int(request.get("count") or 0)]
        request = dict(request, leases={gpu["uuid"]: "" for gpu in first})
    deadline = time.monotonic() + float(request.get("patience") or 0)
    answer = lease(request)
    while is_starting(answer["taken"]) and time.monotonic() < deadline:
        time.sleep(0.2)
        answer = lease(request)
    print(json.dumps(dict(answer, starting=is_starting(answer["taken"]))), flush=True)
    if answer["taken"]:
        return
    renewal = Renewal(str(request["job"]), request["id"], attempt_number(request))
    try:
        silence = BEAT_SECONDS if request.get("beats") else None
        while select.select([0], [], [], silence)[0] and os.read(0, 4096):
            pass
        deadline = time.monotonic() + LINGER_SECONDS
        while time.monotonic() < deadline and is_marked(str(request["job"])):
            time.sleep(0.2)
    finally:
        renewal.end()
        release_all(str(request["job"]), request["id"], attempt_number(request))
    return


def is_starting(taken):
    """Return whether GPUs are taken, by nobody but jobs of `provision run` that have begun just now."""
    begun = [held.get("time") for held in taken.values() if held.get("id") and held["id"] == held.get("job")]
    return bool(taken) and len(begun) == len(taken) and all(abs(time.time() - at) < START_SECONDS for at in begun)


def is_marked(job):
    """Return whether a process of a job that `provision run` has started is left on this node."""
    mark = "PROVISION_JOB={}".format(job).encode()
    for pid in names_in(PROC):
        if pid.isdigit():
            try:
                with open("{}/{}/environ".format(PROC, pid), "rb") as stream:
                    if mark in stream.read().split(b"\0"):
                        return True
            except OSError:
                continue
    return False


def taken_by(uuid, family, leases, foreign):
    """Return whose a GPU is: the lease of another job, or a process of others; None when it is free."""
    held = next((leases[other] for other in family[uuid] if other in leases), None)
    return held or ({"job": foreign[uuid], "foreign": foreign[uuid]} if uuid in foreign else None)


def families(gpus):
    """Return UUID -> all that cannot be leased beside it: itself, and for MIG the GPU and its instances."""
    found = {}
    for gpu in gpus:
        found[gpu["uuid"]] = [gpu["uuid"], *gpu["mig"]]
        for part in gpu["mig"]:
            found[part] = [part, gpu["uuid"]]
    return found


def renew(request):
    """Keep the leases that an attempt has fresh; none is taken."""
    return {"renewed": renew_leases(job_name(request, "job"), request["id"], attempt_number(request))}


def release(request):
    """Give back an attempt's leases, and take away what was prepared for it; not while it runs."""
    job, attempt = job_name(request, "job"), attempt_number(request)
    if supervised([(job, attempt)]):
        raise Refused("attempt {} of {} runs on this node".format(attempt, job), "stop it")
    folder = attempt_folder(job, attempt)
    if str(read_json(os.path.join(folder, "attempt.json")).get("id")) == str(request["id"]):
        remove_secrets(folder)
    names = release_all(job, request["id"], attempt)
    return {"released": [name for name in names if not name.startswith(PORT)]}
