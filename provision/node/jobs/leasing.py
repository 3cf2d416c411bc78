"""Requests about leases: lease, hold, renew, release."""

import json
import os
import select
import signal
import time
from typing import Dict, Iterable, List, Optional

from provision.node.files import PROC, Record, Refused, names_in, read_json, read_text
from provision.node.jobs.gpus import Gpus
from provision.node.jobs.leases import (
    PORT,
    LeaseLock,
    Leases,
    Renewal,
    belongs_to,
    release_all,
    renew_leases,
    write_lease,
)
from provision.node.jobs.reaping import supervised_leases, valid_leases
from provision.node.jobs.records import attempt_folder, attempt_number, drain_reason, job_name, remove_secrets
from provision.node.jobs.runs import job_runs
from provision.node.jobs.supervisors import supervised

CGROUP = os.environ.get("PROVISION_CGROUP") or "/sys/fs/cgroup"
LINGER_SECONDS = 60  # the time in which a job of `run` has to end after its command ended
START_SECONDS = 5  # so long a job of `run` may release a new lease because another node refused one
BEAT_SECONDS = 60  # a command that promised heartbeats and sends none for so long has lost its connection


def lease(request: Record) -> Record:
    """Lease GPUs to a job's instances: all of them, or none."""
    job, attempt, requested = job_name(request, "job"), attempt_number(request), request["leases"]
    if slurmd_runs() and not request.get("slurm"):
        raise Refused(
            "Slurm schedules this node, and two schedulers would use the same GPUs",
            "Use the job engine slurm: cluster_engine: slurm in the inventory, or --engine slurm",
        )
    reason = drain_reason()
    if reason and not request.get("force"):
        raise Refused("the node is drained: {}".format(reason), "Resume it: provision node resume NODE")
    if not requested:
        return {"taken": {}}
    gpus, containers = Gpus(), job_runs()
    state = gpus.state(containers)
    if state.gpus is None:
        raise Refused("the state of the GPUs is unknown: {}".format(state.gpu_error))
    family = families(state.gpus)
    unknown = sorted(set(requested) - set(family))
    if unknown:
        raise Refused("there is no GPU {} on this node (any more)".format(unknown[0]))
    active = supervised_leases(containers)
    with LeaseLock():
        leases = {
            name: item
            for name, item in valid_leases(containers, active).items()
            if not belongs_to(item, job, request["id"], attempt)
        }
        users = {uuid: user_of(uuid, family, leases, state.foreign) for uuid in requested}
        taken = {uuid: user for uuid, user in users.items() if user}
        for uuid, instance in sorted(requested.items()) if not taken else ():
            owner = {"job": job, "id": request["id"], "attempt": attempt, "slurm": request.get("slurm")}
            write_lease(uuid, owner, instance)
    return {"taken": taken}


def lease_in_time(request: Record) -> Record:
    """Lease GPUs as `lease` does; wait up to ``patience`` seconds while others have them or the node refuses."""
    deadline = time.monotonic() + float(request["patience"])
    while True:
        try:
            answer = lease(request)
            if not answer["taken"] or time.monotonic() >= deadline:
                return answer
        except Refused:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.5)


def slurmd_runs() -> bool:
    """Return whether Slurm's daemon runs on this node as a service."""
    places = ("", "/systemd", "/unified")
    return any(read_text("{}{}/system.slice/slurmd.service/cgroup.procs".format(CGROUP, place)) for place in places)


def hold(request: Record) -> None:
    """Lease GPUs, the first ``count`` of this node unless ``leases`` names them, until standard input ends.

    With ``beats``, the lease also ends a minute after the last byte of standard input: the sender may have lost power.
    With ``patience`` (seconds), wait for jobs that start at the same time; ``starting`` of the answer reports them.
    The leases are released when no process carries the job's mark any more, because its supervisor may still end it.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # from a controller on this node, which has closed standard input
    if not request.get("leases"):
        gpus = Gpus().state(job_runs()).gpus or []
        first = sorted(gpus, key=lambda gpu: int(gpu["index"]))[: int(request.get("count") or 0)]
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


def is_starting(taken: Leases) -> bool:
    """Return whether GPUs are taken, all of them by jobs of `provision run` that have just started."""
    times = [
        float(user.get("time") or 0) for user in taken.values() if user.get("id") and user["id"] == user.get("job")
    ]
    return bool(taken) and len(times) == len(taken) and all(abs(time.time() - at) < START_SECONDS for at in times)


def is_marked(job: str) -> bool:
    """Return whether a process of a job of `provision run` is left on this node."""
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


def user_of(uuid: str, family: Dict[str, List[str]], leases: Leases, foreign: Dict[str, str]) -> Optional[Record]:
    """Return the lease of another job or the foreign process that uses a GPU, None if it is free."""
    lease_of_other = next((leases[other] for other in family[uuid] if other in leases), None)
    return lease_of_other or ({"job": foreign[uuid], "foreign": foreign[uuid]} if uuid in foreign else None)


def families(gpus: Iterable[Record]) -> Dict[str, List[str]]:
    """Return UUID -> the UUIDs that exclude each other: itself, and for MIG the GPU and its instances."""
    family = {}
    for gpu in gpus:
        family[gpu["uuid"]] = [gpu["uuid"], *gpu["mig"]]
        for part in gpu["mig"]:
            family[part] = [part, gpu["uuid"]]
    return family


def renew(request: Record) -> Record:
    """Renew the leases of an attempt; take no new one."""
    return {"renewed": renew_leases(job_name(request, "job"), request["id"], attempt_number(request))}


def release(request: Record) -> Record:
    """Release an attempt's leases, and remove its secret files; refuse this while it runs."""
    job, attempt = job_name(request, "job"), attempt_number(request)
    if supervised([(job, attempt)]):
        raise Refused(
            "attempt {} of {} runs on this node".format(attempt, job), "Stop it: provision stop {}".format(job)
        )
    folder = attempt_folder(job, attempt)
    if str(read_json(os.path.join(folder, "attempt.json")).get("id")) == str(request["id"]):
        remove_secrets(folder)
    names = release_all(job, request["id"], attempt)
    return {"released": [name for name in names if not name.startswith(PORT)]}
