"""Names of jobs, and of their kinds as people type them."""

from __future__ import annotations

import re

from provision.errors import UsageError
from provision.model.job import Kind

__all__ = ["JOBS", "KINDS", "LONGEST", "attempt_folder", "check_name", "kind_of", "trainer"]

LONGEST = 49
JOBS = "/var/lib/provision/jobs"
"""Has a folder for each job on its nodes; the programs that run there say the same in ``node_records.py``."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

KINDS = {
    "mpi": Kind.MPI,
    "mpijob": Kind.MPI,
    "pytorch": Kind.PYTORCH,
    "pytorchjob": Kind.PYTORCH,
    "py": Kind.PYTORCH,
    "run": Kind.RUN,
    "runjob": Kind.RUN,
}
"""What may be typed for a kind; the words of arena, and our own third one."""

_ELSEWHERE = {
    "horovod": "mpi starts Horovod's programs: provision submit mpi",
    "horovodjob": "mpi starts Horovod's programs: provision submit mpi",
    "deepspeed": "torchrun starts DeepSpeed's programs: provision submit pytorch --launcher torchrun",
    "deepspeedjob": "torchrun starts DeepSpeed's programs: provision submit pytorch --launcher torchrun",
    "et": "a job with a fixed number of workers: provision submit mpi",
    "etjob": "a job with a fixed number of workers: provision submit mpi",
}
_OTHERS = ("tf", "tfjob", "volcano", "volcanojob", "ray", "rayjob", "spark", "sparkjob", "custom")


def kind_of(word: str) -> Kind | None:
    """Return the kind that a word names, None when it names none.

    Raises:
        UsageError: a type of job that arena has and we have not.
    """
    if word in _ELSEWHERE or word in _OTHERS:
        alternative = _ELSEWHERE.get(word, "`run` starts any command on each worker.")
        raise UsageError(
            f"jobs of type {word} cannot be started here", remedy=f"Types are mpi, pytorch and run. {alternative}"
        )
    return KINDS.get(word.lower())


def trainer(kind: Kind) -> str:
    """Return what stands under TRAINER: ``MPIJOB``, ``PYTORCHJOB``, ``RUNJOB``."""
    return f"{kind.upper()}JOB"


def attempt_folder(name: str, number: int) -> str:
    """Return where a node keeps what it knows of one attempt of a job."""
    return f"{JOBS}/{name}/attempts/{number}"


def check_name(name: str) -> None:
    """Return when `name` can be a job's.

    Raises:
        UsageError: it is empty, too long, or has a letter that host names may not have.
    """
    if not name:
        raise UsageError("the job has no name", remedy="Give it one that no other job has: --name NAME")
    if len(name) <= LONGEST and _NAME.fullmatch(name):
        return
    why = f"it has {len(name)} letters" if _NAME.fullmatch(name) else "names of hosts are made of it"
    close = re.sub(r"[^a-z0-9]+", "-", name.lower())[:LONGEST].strip("-")
    raise UsageError(
        f"--name {name}: this cannot be a job's name: {why}",
        remedy=f"Small letters, digits and dashes between them, {LONGEST} at most"
        + (f", such as {close}." if close else "."),
    )
