"""Epilog of Slurm jobs: ends what a job of ours left on the node, before Slurm gives its GPUs to another job.

However the job ended (cancelled, killed, its batch script lost), its job supervisor and containers are outside Slurm's
cgroup. The epilog asks the supervisor to stop, waits, removes remaining containers and units, and releases the leases.
It acts only on the attempt that this Slurm job ran: a later attempt of the same job may run on the node already.
It never fails and has a time limit: a failing or hanging epilog would drain the node.
"""

import glob
import json
import os
import re
import signal
import sys
import time
from types import FrameType
from typing import List, NamedTuple, Optional

from provision.node import slurm
from provision.node.docker import labels_of
from provision.node.files import Record, Refused, read_json, remove_tree
from provision.node.jobs import ending, records, runs
from provision.node.jobs.leases import all_leases, release_all
from provision.node.jobs.supervisors import STOP_SIGNAL, signal_supervisor, supervised

IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
REASON = "ended by Slurm"
STOP_SECONDS = 20
"""How long the supervisor may take; the containers get the grace time of half of it."""
LIMIT_SECONDS = 60
"""How long the whole epilog may take."""
PAUSE_SECONDS = 0.2


class OutOfTime(BaseException):
    """The epilog has reached its time limit. Handlers of errors do not catch it; TimeoutError is an OSError."""


class SlurmJob(NamedTuple):
    """The attempt of our job that a Slurm job ran."""

    name: str
    id: str
    attempt: int


def main() -> int:
    """End what the job of SLURM_JOB_ID left; return 0 in any case."""
    try:
        try:
            signal.signal(signal.SIGALRM, _out_of_time)
            signal.alarm(LIMIT_SECONDS)
            close_jobs(os.environ.get("SLURM_JOB_ID", ""))
        finally:
            signal.alarm(0)
    except (Exception, OutOfTime) as problem:  # noqa: BLE001 - an exit status other than 0 drains the node
        report("epilog of {}: {!r}".format(os.environ.get("SLURM_JOB_ID"), problem))
    return 0


def report(text: str) -> None:
    """Print a message for slurmd's log."""
    try:
        sys.stderr.write("provision: {}\n".format(text))
    except (OSError, ValueError):  # slurmd has ended
        pass


def _out_of_time(_number: int, _frame: Optional[FrameType]) -> None:
    raise OutOfTime("no end within {} s".format(LIMIT_SECONDS))


def close_jobs(number: str) -> None:
    """End the attempts that a Slurm job ran on this node, and remove the files of its starter if that was killed."""
    if number.isdigit():
        for path in glob.glob(os.path.join(glob.escape(slurm.RUN), slurm.STARTER.format(number) + "*")):
            remove_tree(path)
    for job in jobs_of(number):
        close(job)
        forget(number, job)


def jobs_of(number: str) -> List[SlurmJob]:
    """Return the attempts that a Slurm job ran on this node: by its mark, else by the leases; none for other jobs.

    Only root can write marks and leases. Comments of Slurm's jobs do not count: they do not name the attempt.
    """
    if not number.isdigit():
        return []
    recorded = read_record(number)
    return leased(number) if recorded is None else [recorded]


def leased(number: str) -> List[SlurmJob]:
    """Return the attempts that leased GPUs for a Slurm job. Commands of `provision run` release their leases."""
    leases = [lease for lease in all_leases().values() if str(lease.get("slurm") or "") == number]
    jobs = {checked(dict(lease, name=lease.get("job"))) for lease in leases}
    return sorted(job for job in jobs if job is not None and is_stored(job))


def is_stored(job: SlurmJob) -> bool:
    """Return whether the attempt of this number on the node is one of this job, and not of another one of its name."""
    stored = read_json(os.path.join(records.attempt_folder(job.name, job.attempt), "attempt.json"))
    return bool(stored) and str(stored.get("id")) == job.id


def read_record(number: str) -> Optional[SlurmJob]:
    """Return the attempt that the mark of a Slurm job names; None without a file, or with one that is not root's."""
    try:
        handle = os.open(os.path.join(slurm.RUN, number), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(stream.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return None
        try:
            document = json.loads(stream.read(65536).decode(errors="replace"))
        except ValueError:
            return None
    return checked(document) if isinstance(document, dict) else None


def checked(document: Record) -> Optional[SlurmJob]:
    """Return a job whose name, id and attempt have their forms: they become parts of paths and of requests."""
    name, token, attempt = document.get("name"), document.get("id"), document.get("attempt")
    if not isinstance(name, str) or not records.NAME.match(name):
        return None
    if not isinstance(token, str) or not IDENTIFIER.match(token):
        return None
    if not isinstance(attempt, int) or isinstance(attempt, bool) or attempt < 1:
        return None
    return SlurmJob(name, token, attempt)


def close(job: SlurmJob) -> None:
    """Ask the supervisor to stop, wait for it, then remove what remains."""
    request = {"name": job.name, "id": job.id, "attempt": job.attempt, "reason": REASON, "grace": STOP_SECONDS / 2}
    policy, ended = clean_policy(job), {item["Id"] for item in runs_of(job) if has_ended(item)}
    try:
        if not ending.stop(request)["asked"] and has_supervisor(job):  # of an attempt that is not the last one
            signal_supervisor(records.attempt_folder(job.name, job.attempt), STOP_SIGNAL)
        deadline = time.monotonic() + STOP_SECONDS
        while has_supervisor(job) and time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)
    except Refused as refusal:  # such as another job with this name: what has this id still ends
        report(str(refusal))
    for item in runs_of(job):
        if not has_ended(item) or policy == "All" or (policy == "Running" and item["Id"] not in ended):
            runs.remove_run(item)
    release_all(job.name, job.id, job.attempt)


def has_supervisor(job: SlurmJob) -> bool:
    """Return whether a supervisor of the attempt is still at work."""
    return is_stored(job) and bool(supervised([(job.name, job.attempt)]))


def clean_policy(job: SlurmJob) -> str:
    """Return which containers of the attempt are removed; the supervisor of an ended attempt has applied its policy."""
    if not is_stored(job):
        return "All"
    config = read_json(os.path.join(records.attempt_folder(job.name, job.attempt), "keeper.json"))
    return str(config.get("clean") or "None")


def runs_of(job: SlurmJob) -> List[Record]:
    """Return the containers and units of the attempt; the job's TensorBoard, which has no attempt, is none of them."""
    key = (job.name, job.id, str(job.attempt))
    return [item for item in runs.job_runs("id", job.id) or () if labels_of(item) == key]


def has_ended(item: Record) -> bool:
    """Return whether a container or unit has ended, and so uses no GPU."""
    return item.get("State") == "exited"


def forget(number: str, job: SlurmJob) -> None:
    """Remove the mark of a Slurm job, unless it names another attempt by now."""
    if read_record(number) == job:
        try:
            os.unlink(os.path.join(slurm.RUN, number))
        except OSError:
            pass
