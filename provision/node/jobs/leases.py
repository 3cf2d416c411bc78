"""Leases of GPUs and ports on this node: files that are written and removed under one lock."""

import os
import time

from provision.node.files import LOCK_SECONDS, Refused, locked_within, names_in, read_json, remove, write_json
from provision.node.jobs.records import RUN, make_folders

PORT = "port-"
HOLD_SECONDS = 120  # a lease stands so long without a keeper: whoever starts the job renews it as long as that takes


class Locked:
    """Holds the lock around every change of leases."""

    def __enter__(self):
        make_folders()
        self.handle = os.open(os.path.join(RUN, "jobs.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not locked_within(self.handle, LOCK_SECONDS):
            os.close(self.handle)
            raise Refused("another command has held the leases of this node for {} s".format(LOCK_SECONDS))
        return self

    def __exit__(self, *_):
        os.close(self.handle)


def lease_path(name):
    """Return the file of a lease; the UUID of an old MIG instance has slashes."""
    return os.path.join(RUN, "leases", name.replace("%", "%25").replace("/", "%2F"))


def all_leases():
    """Return GPU or port -> its lease."""
    found = {}
    for item in names_in(os.path.join(RUN, "leases")):
        if not item.endswith(".new"):
            name = item.replace("%2F", "/").replace("%25", "%")
            found[name] = read_json(os.path.join(RUN, "leases", item))
    return found


def gpu_leases(leases):
    """Return those of GPUs."""
    return {name: lease for name, lease in leases.items() if not name.startswith(PORT)}


def write_lease(name, request, instance):
    """Write one lease down; the caller has the lock."""
    lease = {"job": request["job"], "id": request["id"], "attempt": request["attempt"], "instance": instance}
    write_json(lease_path(name), dict(lease, time=time.time(), monotonic=time.monotonic()))


def mine(lease, job, token, attempt):
    """Return whether a lease is that attempt's; the submitter chooses the id, so the name is compared too."""
    return (str(lease.get("job")), str(lease.get("id")), str(lease.get("attempt"))) == (job, str(token), str(attempt))


def release_all(job, token, attempt=None):
    """Release all leases of an attempt, or of a whole job with TensorBoard's port; return their names."""
    with Locked():
        held = all_leases().items()
        of_job = [
            (name, lease) for name, lease in held if (lease.get("job"), str(lease.get("id"))) == (job, str(token))
        ]
        names = [name for name, lease in of_job if attempt is None or mine(lease, job, token, attempt)]
        for name in names:
            remove(lease_path(name))
    return names


def renew_leases(job, token, attempt):
    """Renew the leases of an attempt; return how many there are."""
    with Locked():
        names = {name: held for name, held in all_leases().items() if mine(held, job, token, attempt)}
        for name, held in names.items():
            write_json(lease_path(name), dict(held, monotonic=time.monotonic()))
    return len(names)


class Renewal:
    """Keeps an attempt's leases fresh while an image comes."""

    def __init__(self, job, token, attempt):
        import threading

        self.over = threading.Event()
        self.thread = threading.Thread(target=self._renew, args=(job, token, attempt), daemon=True)
        self.thread.start()

    def _renew(self, job, token, attempt):
        while True:
            try:
                renew_leases(job, token, attempt)
            except (Refused, OSError):  # the next time, perhaps: they stand for longer than one
                pass
            if self.over.wait(HOLD_SECONDS / 4):
                return

    def end(self):
        """Keep them no longer."""
        self.over.set()
        self.thread.join()
