"""What a command tells of its job: which kind starts it, and whether its own counts fit what was asked for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from provision.commands.mpirun_words import LAUNCHERS, is_launcher, parse_line
from provision.model.job import JobSpec, Kind

__all__ = ["inferred", "rank_findings", "words_of"]

_MPI = (*LAUNCHERS, "horovodrun")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


def words_of(command: Sequence[str]) -> list[str]:
    """Return a command's words for looking at alone, without variables before it; none where a shell is needed."""
    if len(command) != 1:
        return list(command)
    try:
        words = shlex.split(command[0])
    except ValueError:
        words = command[0].split()
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words.pop(0)
    return words


def inferred(command: Sequence[str]) -> tuple[Kind, str]:
    """Return the kind of a job that was given none, and why."""
    words = words_of(command)
    program = words[0].rpartition("/")[2] if words else ""
    if program in _MPI:
        return Kind.MPI, f"the command starts with {program}"
    return Kind.PYTORCH, f"the command starts with {program or 'no program'}, which is no mpirun"


def rank_findings(spec: JobSpec) -> list[str]:
    """Return what is odd about how an mpi job's command starts its ranks."""
    if spec.kind is not Kind.MPI or spec.launcher:
        return []
    words = words_of(spec.command)
    if not is_launcher(words):
        program = words[0] if words else "nothing"
        if program.rpartition("/")[2] in _MPI:
            return []
        return [f"{program} is no mpirun: it runs once, on the first node; --np auto starts it on every GPU"]
    typed = parse_line(words).ranks
    slots = spec.total_gpus or spec.workers
    what = f"{spec.workers} x {spec.gpus} GPUs" if spec.gpus else f"{spec.workers} worker(s)"
    if typed is None or typed == slots:
        return []
    return [f"-np {typed} starts {typed} ranks, and --workers and --gpus ask for {what}"]
