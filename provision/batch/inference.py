"""What a command tells of its job: which kind starts it, and whether its own counts fit what was asked for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from provision.commands.mpirun_words import is_launcher, parse_line
from provision.launchers import LAUNCHERS, typed_commands
from provision.model.job import JobSpec, Kind

__all__ = ["inferred", "rank_findings", "starts_processes", "starts_ranks", "surely_fails", "words_of"]

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
    if program in typed_commands(per_node=False):
        return Kind.MPI, f"the command starts with {program}"
    return Kind.PYTORCH, f"the command starts with {program or 'no program'}, which is no mpirun"


def rank_findings(spec: JobSpec) -> list[str]:
    """Return what is odd about how an mpi job's command starts its ranks."""
    words = words_of(spec.command)
    if spec.kind is not Kind.MPI or not words:
        return []
    if not is_launcher(words):
        if starts_ranks(words) or spec.launcher or len(spec.command) > 1:
            return _odd_count(spec)
        return [f"{words[0]} is no mpirun: it runs once, on the first node; --np auto starts it on every GPU"]
    typed = parse_line(words).ranks
    slots = _slots(spec)
    if spec.ranks:
        return [f"--np {spec.ranks} changes nothing: the command is {words[0]} already, and starts its ranks itself"]
    what = f"{spec.workers} x {spec.gpus} GPUs" if spec.gpus else f"{spec.workers} worker(s)"
    if typed is None or typed == slots:
        return []
    return [f"-np {typed} starts {typed} ranks, and --workers and --gpus ask for {what}"]


def _odd_count(spec: JobSpec) -> list[str]:
    if spec.ranks in {0, _slots(spec)}:
        return []
    return [f"--np {spec.ranks} starts {spec.ranks} ranks, and there are {_slots(spec)} places for them"]


def _slots(spec: JobSpec) -> int:
    return spec.total_gpus or spec.workers


def starts_ranks(words: Sequence[str]) -> bool:
    """Return whether a command starts an mpi job's ranks by itself."""
    return bool(words) and words[0].rpartition("/")[2] in typed_commands(per_node=False)


def surely_fails(spec: JobSpec) -> str:
    """Return why an mpi job's ranks cannot start wherever it goes, empty when nothing is known against it.

    Open MPI refuses more ranks than slots, and our host file has a slot for each GPU, or worker without GPUs.
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
    """Return whether a command is a launcher of torch's processes already."""
    left = [word for word in words if word != "-u"]
    if not left:
        return False
    modules = {module for launcher in LAUNCHERS.values() for module in launcher.modules}
    typed = left[0].rpartition("/")[2] in typed_commands(per_node=True)
    return typed or (left[1:2] == ["-m"] and modules.issuperset(left[2:3]) and len(left) > 2)  # noqa: PLR2004 - PROGRAM -m MODULE
