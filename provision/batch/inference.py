"""Infer the kind of a job from its command, and compare the ranks of the command with the requested ones."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from provision.commands.mpirun_words import is_launcher, parse_line
from provision.launchers import LAUNCHERS, typed_commands
from provision.model.job import JobSpec, Kind

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


def words_of(command: Sequence[str]) -> list[str]:
    """Return the words of a command for inspection only, without variable assignments before it."""
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
    """Return the kind of a job without an explicit kind, and the reason."""
    words = words_of(command)
    program = words[0].rpartition("/")[2] if words else ""
    if program in typed_commands(per_node=False):
        return Kind.MPI, f"the command starts with {program}"
    return Kind.PYTORCH, f"the command starts with {program or 'no program'}, which is not mpirun"


def rank_findings(spec: JobSpec) -> list[str]:
    """Return warnings about the number of ranks of an mpi job."""
    words = words_of(spec.command)
    if spec.kind is not Kind.MPI or not words:
        return []
    if not is_launcher(words):
        if starts_ranks(words) or spec.launcher or len(spec.command) > 1:
            return _wrong_count(spec)
        return [f"{words[0]} is not mpirun: it runs once, on the first node; --np auto starts it on every GPU"]
    typed = parse_line(words).ranks
    slots = _slots(spec)
    if spec.ranks:
        return [f"--np {spec.ranks} has no effect: the command is {words[0]}, which starts the ranks"]
    what = f"{spec.workers} x {spec.gpus} GPUs" if spec.gpus else f"{spec.workers} worker(s)"
    if typed is None or typed == slots:
        return []
    return [f"-np {typed} starts {typed} ranks, but --workers and --gpus request {what}"]


def _wrong_count(spec: JobSpec) -> list[str]:
    if spec.ranks in {0, _slots(spec)}:
        return []
    return [f"--np {spec.ranks} starts {spec.ranks} ranks, but there are {_slots(spec)} slots"]


def _slots(spec: JobSpec) -> int:
    return spec.total_gpus or spec.workers


def starts_ranks(words: Sequence[str]) -> bool:
    """Return whether a command starts the ranks of an mpi job itself."""
    return bool(words) and words[0].rpartition("/")[2] in typed_commands(per_node=False)


def rank_problem(spec: JobSpec) -> str:
    """Return why the ranks of an mpi job cannot start on any node; empty if they may.

    Open MPI refuses more ranks than slots; the host file has a slot for each GPU, or for each worker without GPUs.
    """
    if spec.kind is not Kind.MPI:
        return ""
    words = words_of(spec.command)
    line = parse_line(words) if is_launcher(words) else None
    ranks = spec.ranks if line is None else 0 if line.oversubscribes else line.ranks or 0
    flag = "--np" if line is None else "-np"
    slots = _slots(spec)
    return f"{flag} {ranks} is more than the {slots} slots of --workers and --gpus" if ranks > slots else ""


def starts_processes(words: Sequence[str]) -> bool:
    """Return whether a command starts the processes of torch itself."""
    left = [word for word in words if word != "-u"]
    if not left:
        return False
    modules = {module for launcher in LAUNCHERS.values() for module in launcher.modules}
    typed = left[0].rpartition("/")[2] in typed_commands(per_node=True)
    return typed or (left[1:2] == ["-m"] and modules.issuperset(left[2:3]) and len(left) > 2)  # noqa: PLR2004 - PROGRAM -m MODULE
