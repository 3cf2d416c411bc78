"""Leases of GPUs and ports on this node: files that are written and removed under one lock."""

import os
import time
from typing import Dict, List, Optional, Union

from provision.node.files import LOCK_SECONDS, Record, Refused, locked_within, names_in, read_json, remove, write_json
from provision.node.jobs.records import RUN, make_folders

PORT = "port-"
LEASE_SECONDS = 120  # the lifetime of a lease without a job supervisor; the command that starts the job renews it

Leases = Dict[str, Record]
"""GPU or port -> its lease."""


class LeaseLock:
    """Holds the lock that every change of leases needs."""

    def __enter__(self) -> "LeaseLock":  # noqa: PYI034 - typing.Self is of Python 3.11
        make_folders()
        self.handle = os.open(os.path.join(RUN, "jobs.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not locked_within(self.handle, LOCK_SECONDS):
            os.close(self.handle)
            raise Refused("another command has held the lock of this node's leases for {} s".format(LOCK_SECONDS))
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)


def lease_path(name: str) -> str:
    """Return the file of a lease; the UUID of an old MIG instance contains slashes."""
    return os.path.join(RUN, "leases", name.replace("%", "%25").replace("/", "%2F"))


def all_leases() -> Leases:
    """Return all leases of this node."""
    leases = {}
    for item in names_in(os.path.join(RUN, "leases")):
        if not item.endswith(".new"):
            name = item.replace("%2F", "/").replace("%25", "%")
            leases[name] = read_json(os.path.join(RUN, "leases", item))
    return leases


def gpu_leases(leases: Leases) -> Leases:
    """Return the leases of GPUs."""
    return {name: lease for name, lease in leases.items() if not name.startswith(PORT)}


def write_lease(name: str, owner: Record, instance: str) -> None:
    """Write a lease for the `job`, `id`, `attempt` and Slurm job of its owner; the caller holds the lock."""
    lease = {"job": owner["job"], "id": owner["id"], "attempt": owner["attempt"], "instance": instance}
    if owner.get("slurm"):  # Slurm's epilog finds the attempt by it
        lease["slurm"] = owner["slurm"]
    write_json(lease_path(name), dict(lease, time=time.time(), monotonic=time.monotonic()))


def belongs_to(lease: Record, job: str, token: str, attempt: Union[int, str]) -> bool:
    """Return whether an attempt has a lease; the submitter chooses the ID, so the job's name is compared too."""
    return (str(lease.get("job")), str(lease.get("id")), str(lease.get("attempt"))) == (job, str(token), str(attempt))


def release_all(job: str, token: str, attempt: Optional[int] = None) -> List[str]:
    """Release all leases of an attempt, or of a job including the port of TensorBoard; return their names."""
    with LeaseLock():
        of_job = {
            name: lease
            for name, lease in all_leases().items()
            if (lease.get("job"), str(lease.get("id"))) == (job, str(token))
        }
        names = [name for name, lease in of_job.items() if attempt is None or belongs_to(lease, job, token, attempt)]
        for name in names:
            remove(lease_path(name))
    return names


def renew_leases(job: str, token: str, attempt: int) -> int:
    """Renew the leases of an attempt; return their number."""
    with LeaseLock():
        leases = {name: lease for name, lease in all_leases().items() if belongs_to(lease, job, token, attempt)}
        for name, lease in leases.items():
            write_json(lease_path(name), dict(lease, monotonic=time.monotonic()))
    return len(leases)


class Renewal:
    """Renews the leases of an attempt in a thread."""

    def __init__(self, job: str, token: str, attempt: int) -> None:
        import threading

        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._renew, args=(job, token, attempt), daemon=True)
        self.thread.start()

    def _renew(self, job: str, token: str, attempt: int) -> None:
        while True:
            try:
                renew_leases(job, token, attempt)
            except (Refused, OSError):  # a lease outlives several renewals
                pass
            if self.ended.wait(LEASE_SECONDS / 4):
                return

    def end(self) -> None:
        """Stop the renewal."""
        self.ended.set()
        self.thread.join()
