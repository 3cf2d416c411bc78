"""Closes attempts without a job supervisor, and releases leases that expired."""

import fcntl
import os
import time
from typing import Container, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from provision.node.docker import labels_of, running_attempts
from provision.node.files import Record, Refused, boot_id, boot_time, read_json, remove, stamp, write_json
from provision.node.jobs.leases import LEASE_SECONDS, LeaseLock, Leases, all_leases, lease_path, release_all
from provision.node.jobs.records import (
    NAME,
    OVER,
    Attempt,
    add_event,
    attempt_folder,
    attempts_of,
    instances_of,
    job_names,
    remove_secrets,
)
from provision.node.jobs.runs import job_runs, remove_run
from provision.node.jobs.supervisors import has_supervisor, supervised

START_SECONDS = 60  # a job supervisor that does not run so long after its start does not start any more
NO_ATTEMPT: Attempt = ("", 0)


# Attempts


def unsupervised(names: Optional[Iterable[str]] = None) -> Iterator[Tuple[str, int, Record]]:
    """Yield name, attempt and result of each open attempt without a job supervisor."""
    here = boot_id()
    open_attempts = [
        (name, attempt)
        for name in (job_names() if names is None else names)
        for attempt in attempts_of(name)[-1:]
        if os.path.exists(os.path.join(attempt_folder(name, attempt), "keeper.json"))
    ]
    active = supervised(open_attempts)
    for name, attempt in open_attempts:
        path = os.path.join(attempt_folder(name, attempt), "keeper.json")
        config = read_json(path)
        if (name, attempt) in active or not config:
            continue
        node = config.get("node", "")
        if config.get("boot_id") != here:
            reason = "node {} rebooted at {} during the job".format(node, stamp(boot_time())[:19] + "Z")
            yield name, attempt, failed("job.node_rebooted", node, reason)
        elif age_of(path) > START_SECONDS:
            reason = "the job supervisor on node {} is gone, and so are its containers".format(node)
            yield name, attempt, failed("job.unsupervised", node, reason)


def failed(code: str, node: str, reason: str) -> Record:
    """Return the result of an attempt that failed because of its node."""
    return {"status": "FAILED", "reason": reason, "code": code, "params": {"nodes": [node]}}


def age_of(path: str) -> float:
    """Return how many seconds ago a file was written, 0 if it is gone: its job supervisor has just ended."""
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return 0.0


def close_unsupervised(containers: Optional[List[Record]], names: Optional[Iterable[str]] = None) -> None:
    """Record the end of attempts without a job supervisor and without a running container, and remove their files."""
    if containers is None:
        return
    running = running_attempts(containers)
    for name, attempt, result in list(unsupervised(names)):
        config = read_json(os.path.join(attempt_folder(name, attempt), "keeper.json"))
        if (name, str(config.get("id")), str(attempt)) not in running:
            closed = close_attempt(name, attempt, result, "Lost")
            if closed and config.get("boot_id") != boot_id() and config.get("clean") in ("All", "Running"):
                remove_containers(containers, config, attempt)


def remove_containers(containers: Iterable[Record], config: Record, attempt: int) -> None:
    """Remove the containers of an attempt that a reboot ended, in place of its job supervisor."""
    for item in containers:
        if labels_of(item) == (str(config.get("name")), str(config.get("id")), str(attempt)):
            try:
                remove_run(item)
            except OSError:
                return


def close_attempt(name: str, attempt: int, result: Record, status: str) -> bool:
    """Record the end of an attempt without a job supervisor, unless one has started meanwhile."""
    folder = attempt_folder(name, attempt)
    try:
        handle = os.open(os.path.join(folder, "keeper.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        config = read_json(os.path.join(folder, "keeper.json"))
        for instance, record in instances_of(folder).items():
            if record.get("status") not in OVER:
                record.update(status=status, reason=result["reason"])
                write_json(os.path.join(folder, instance + ".json"), record)
        if not os.path.exists(os.path.join(folder, "result.json")):
            document = {"exit_code": None, "first_failure": "", "first_rank": None, "ended": time.time()}
            document.update(result)
            document["chief"] = bool(config.get("chief"))
            write_json(os.path.join(folder, "result.json"), document)
            node = config.get("node") or read_json(os.path.join(folder, "attempt.json")).get("node", "")
            add_event(name, "node {}".format(node), result["reason"], "Warning")
        remove_secrets(folder)
        try:
            release_all(name, str(read_json(os.path.join(folder, "attempt.json")).get("id")), attempt)
        except Refused:
            pass  # the next request releases them, because the attempt has a result
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


# Leases


def leases_without_run(leases: Leases, containers: Iterable[Record]) -> Dict[Attempt, List[str]]:
    """Return the leases of each attempt without a running container; invalid ones have the attempt `NO_ATTEMPT`."""
    running = running_attempts(containers)
    names_of: Dict[Attempt, List[str]] = {}
    for name, lease in leases.items():
        job, attempt = str(lease.get("job")), str(lease.get("attempt"))
        if (job, str(lease.get("id")), attempt) not in running:
            owner = (job, int(attempt)) if NAME.match(job) and attempt.isdigit() else NO_ATTEMPT
            names_of.setdefault(owner, []).append(name)
    return names_of


def supervised_leases(containers: Optional[Iterable[Record]]) -> Set[Attempt]:
    """Return the attempts with leases and a job supervisor, but without a container. Call this without the lock.

    systemd may answer slowly. A lease that is taken after this call is so new that it has not expired.
    """
    if containers is None:
        return set()
    return supervised([owner for owner in leases_without_run(all_leases(), containers) if owner != NO_ATTEMPT])


def valid_leases(containers: Optional[Iterable[Record]], active: Container[Attempt]) -> Leases:
    """Remove the leases of attempts that have ended or never started; return the others. The caller holds the lock.

    Args:
        containers: as the engine lists them; None if it does not answer: then no lease is removed.
        active: the attempts that had a job supervisor a moment ago.
    """
    leases = all_leases()
    for owner, names in leases_without_run(leases, containers).items() if containers is not None else ():
        in_use = owner != NO_ATTEMPT and (owner in active or has_supervisor(attempt_folder(*owner)))
        for name in names:
            if not in_use and not may_start(leases[name], *owner):
                remove(lease_path(name))
                del leases[name]
    return leases


def may_start(lease: Record, job: str, attempt: int) -> bool:
    """Return whether the attempt of a lease without a job supervisor and without a container may still start."""
    folder = attempt_folder(job, attempt) if job else ""
    record = read_json(os.path.join(folder, "attempt.json")) if folder else {}
    is_prepared = bool(record) and str(record.get("id")) == str(lease.get("id"))
    if is_prepared and os.path.exists(os.path.join(folder, "result.json")):
        return False
    return is_fresh(lease)


def is_fresh(lease: Record) -> bool:
    """Return whether a lease was taken or renewed a short time ago, since the node was booted."""
    try:
        age = time.monotonic() - float(lease.get("monotonic", -1e9))
    except (TypeError, ValueError):
        return False
    return 0 <= age < LEASE_SECONDS


def release_expired() -> None:
    """Release leases that expired; do not ask the Docker engine if all old leases have a job supervisor.

    If this fails, the next request does it.
    """
    old = {name: lease for name, lease in all_leases().items() if not is_fresh(lease)}
    owners = leases_without_run(old, ())
    if any(owner == NO_ATTEMPT or not has_supervisor(attempt_folder(*owner)) for owner in owners):
        containers = job_runs()
        active = supervised_leases(containers)
        try:
            with LeaseLock():
                valid_leases(containers, active)
        except (Refused, OSError):
            return
