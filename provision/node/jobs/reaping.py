"""Closes attempts that nothing watches over any more, and gives back leases that nobody holds."""

import fcntl
import os
import time

from provision.node.docker import labels_of, running_attempts
from provision.node.files import Refused, boot_id, boot_time, read_json, remove, stamp, write_json
from provision.node.jobs.leases import LEASE_SECONDS, LeaseLock, all_leases, lease_path, release_all
from provision.node.jobs.records import (
    NAME,
    OVER,
    add_event,
    attempt_folder,
    attempts_of,
    instances_of,
    job_names,
    remove_secrets,
)
from provision.node.jobs.runs import job_runs, remove_run
from provision.node.jobs.supervisors import has_supervisor, supervised

START_SECONDS = 60  # a keeper that was not there so long after its start will not come


# Attempts


def unwatched(names=None):
    """Yield (name, attempt, result) of each open attempt without a job supervisor.

    Args:
        names: of the jobs that are looked at; None: all.
    """
    here = boot_id()
    open_ones = [
        (name, attempt)
        for name in (job_names() if names is None else names)
        for attempt in attempts_of(name)[-1:]
        if os.path.exists(os.path.join(attempt_folder(name, attempt), "keeper.json"))
    ]
    active = supervised(open_ones)
    for name, attempt in open_ones:
        path = os.path.join(attempt_folder(name, attempt), "keeper.json")
        told = read_json(path)
        if (name, attempt) in active or not told:
            continue
        node = told.get("node", "")
        if told.get("boot_id") != here:
            reason = "node {} rebooted at {} during the job".format(node, stamp(boot_time())[:19] + "Z")
            yield name, attempt, failed("job.node_rebooted", node, reason)
        elif age_of(path) > START_SECONDS:
            reason = "the job supervisor on node {} is gone, and so are its containers".format(node)
            yield name, attempt, failed("job.unsupervised", node, reason)


def failed(code, node, reason):
    """Return the result of an attempt that failed by its node."""
    return {"status": "FAILED", "reason": reason, "code": code, "params": {"nodes": [node]}}


def age_of(path):
    """Return how many seconds ago a file was written, 0 where it is gone: its keeper has just ended."""
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return 0.0


def close_unwatched(containers, names=None):
    """Write down how attempts ended that have no keeper and no running container, and take away what they left."""
    if containers is None:
        return
    running = running_attempts(containers)
    for name, attempt, result in list(unwatched(names)):
        told = read_json(os.path.join(attempt_folder(name, attempt), "keeper.json"))
        if (name, str(told.get("id")), str(attempt)) not in running:
            closed = close_attempt(name, attempt, result, "Lost")
            if closed and told.get("boot_id") != boot_id() and told.get("clean") in ("All", "Running"):
                remove_containers(containers, told, attempt)


def remove_containers(containers, told, attempt):
    """Remove the containers of an attempt that a reboot has ended: no keeper is there to do so."""
    for item in containers:
        if labels_of(item) == (str(told.get("name")), str(told.get("id")), str(attempt)):
            try:
                remove_run(item)
            except OSError:
                return


def close_attempt(name, attempt, result, word):
    """End the record of an attempt without its keeper; a keeper that has begun meanwhile goes on."""
    folder = attempt_folder(name, attempt)
    try:
        handle = os.open(os.path.join(folder, "keeper.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        told = read_json(os.path.join(folder, "keeper.json"))
        for instance, record in instances_of(folder).items():
            if record.get("status") not in OVER:
                record.update(status=word, reason=result["reason"])
                write_json(os.path.join(folder, instance + ".json"), record)
        if not os.path.exists(os.path.join(folder, "result.json")):
            whole = {"exit_code": None, "first_failure": "", "first_rank": None, "ended": time.time()}
            whole.update(result, chief=bool(told.get("chief")))
            write_json(os.path.join(folder, "result.json"), whole)
            node = told.get("node") or read_json(os.path.join(folder, "attempt.json")).get("node", "")
            add_event(name, "node {}".format(node), result["reason"], "Warning")
        remove_secrets(folder)
        try:
            release_all(name, str(read_json(os.path.join(folder, "attempt.json")).get("id")), attempt)
        except Refused:
            pass  # what has a result loses its leases to the next that looks
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


# Leases


def doubtful(leases, containers):
    """Return (job, attempt) -> its leases, of attempts without a running container."""
    running, found = running_attempts(containers), {}
    for name, lease in leases.items():
        job, attempt = str(lease.get("job")), str(lease.get("attempt"))
        if (job, str(lease.get("id")), attempt) not in running:
            known = (job, int(attempt)) if NAME.match(job) and attempt.isdigit() else ("", 0)
            found.setdefault(known, []).append(name)
    return found


def supervised_leases(containers):
    """Return which (job, attempt) that have leases and no container have a keeper: systemd is asked without the lock.

    Whoever takes a lease or begins to keep it after that has a lease so new that it stands by itself.
    """
    return (
        supervised([one for one in doubtful(all_leases(), containers) if one[0]]) if containers is not None else set()
    )


def reaped(containers, living):
    """Give back the leases of attempts that are over, or that never came to be; return the others. Under the lock.

    Args:
        containers: as the engine lists them; None when it does not answer, and then nothing is given back.
        living: the (job, attempt) that had a keeper a moment ago.
    """
    leases = all_leases()
    for one, names in doubtful(leases, containers).items() if containers is not None else ():
        held = one[0] and (one in living or has_supervisor(attempt_folder(*one)))
        for name in names:
            if not held and not stands(leases[name], *one):
                remove(lease_path(name))
                del leases[name]
    return leases


def stands(lease, job, attempt):
    """Return whether a lease without a keeper and without a container may still become a job's."""
    folder = attempt_folder(job, attempt) if job else ""
    record = read_json(os.path.join(folder, "attempt.json")) if folder else {}
    prepared = bool(record) and str(record.get("id")) == str(lease.get("id"))
    if prepared and os.path.exists(os.path.join(folder, "result.json")):
        return False
    return is_fresh(lease)


def is_fresh(lease):
    """Return whether a lease was taken or renewed a short while ago, since the node was booted."""
    try:
        age = time.monotonic() - float(lease.get("monotonic", -1e9))
    except (TypeError, ValueError):
        return False
    return 0 <= age < LEASE_SECONDS


def reap_old():
    """Give back what nobody holds any more; where all old leases have a keeper, docker's engine is not even asked.

    Where it cannot be done now, the next that looks does it.
    """
    old = {name: lease for name, lease in all_leases().items() if not is_fresh(lease)}
    if any(not one[0] or not has_supervisor(attempt_folder(*one)) for one in doubtful(old, ())):
        containers = job_runs()
        living = supervised_leases(containers)
        try:
            with LeaseLock():
                reaped(containers, living)
        except (Refused, OSError):
            return
