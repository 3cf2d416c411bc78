"""Names of jobs, and names of their kinds on the command line."""

from __future__ import annotations

import re

from provision.errors import UsageError
from provision.model.job import Kind

LONGEST = 49
JOBS = "/var/lib/provision/jobs"
"""Contains a folder for each job on its nodes; ``node_records.py`` of the job agent defines the same path."""
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
"""Names of the kinds: those of arena, and ``run``."""

_ELASTIC = "Use a fixed number of workers: provision submit mpi"
_ANY = "`run` starts any command on each worker."
_OTHERS = {"et": _ELASTIC, "tf": _ANY, "volcano": _ANY, "ray": _ANY, "spark": _ANY, "custom": _ANY}
"""Job types of arena that are no launchers, also with ``job`` at their end, and what to use instead."""


def kind_of(word: str) -> Kind | None:
    """Return the kind of this name; None if there is none.

    Raises:
        UsageError: a job type of arena that is not supported.
    """
    kind = KINDS.get(word.lower())
    alternative = "" if kind else _alternative(word)
    if alternative:
        raise UsageError(f"job type {word} is not supported", remedy=f"Choose mpi, pytorch or run. {alternative}")
    return kind


def _alternative(word: str) -> str:
    """Return what to use instead of another job type of arena; empty for other words."""
    from provision.launchers import LAUNCHERS

    launchers = {name: launcher.instead for name, launcher in LAUNCHERS.items() if launcher.instead}
    return {**_OTHERS, **launchers}.get(word.removesuffix("job"), "")


def trainer(kind: Kind) -> str:
    """Return the name of a kind in tables: ``MPIJOB``, ``PYTORCHJOB``, ``RUNJOB``."""
    return f"{kind.upper()}JOB"


def attempt_folder(name: str, number: int) -> str:
    """Return the folder of an attempt on a node."""
    return f"{JOBS}/{name}/attempts/{number}"


def check_name(name: str) -> None:
    """Verify the name of a job.

    Raises:
        UsageError: it is empty, too long, or contains a character that host names cannot contain.
    """
    if not name:
        raise UsageError("the job has no name", remedy="Choose a unique name: --name NAME")
    if len(name) <= LONGEST and _NAME.fullmatch(name):
        return
    why = f"{len(name)} characters" if _NAME.fullmatch(name) else "invalid characters"
    close = re.sub(r"[^a-z0-9]+", "-", name.lower())[:LONGEST].strip("-")
    raise UsageError(
        f"--name {name}: invalid job name ({why})",
        remedy=f"Use at most {LONGEST} lower-case letters, digits and dashes" + (f", e.g. {close}." if close else "."),
    )
