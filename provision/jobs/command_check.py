"""What is odd about a typed mpirun line on the nodes that a job was given."""

from __future__ import annotations

from collections.abc import Sequence

from provision.batch.inference import words_of
from provision.batch.mpi import host_entries
from provision.checks.launch_lint import LaunchScene, lint
from provision.checks.launch_scene import scene_of
from provision.commands.mpirun_words import is_launcher, parse_line
from provision.errors import UsageError
from provision.jobs.cluster_snapshot import Known
from provision.model.job import JobSpec, Kind, Seat

__all__ = ["line_notes"]

UNKNOWN_VERSION = 0
"""Nobody has asked the image which Open MPI it has."""


def line_notes(spec: JobSpec, seats: Sequence[Seat], known: Known) -> tuple[str, ...]:
    """Return warnings about an mpi job's variables, parameters and flags, as far as the nodes tell.

    Raises:
        UsageError: it surely fails there, and nobody said --no-lint.
    """
    if spec.kind is not Kind.MPI:
        return ()
    findings = lint(_scene(spec, seats, known))
    worst = next((finding for finding in findings if finding.fails), None)
    if worst is not None and spec.lint:
        raise UsageError(str(worst), remedy=f"{worst.remedy} --no-lint starts it all the same.")
    return tuple(f"{finding} ({finding.remedy})" for finding in findings)


def _scene(spec: JobSpec, seats: Sequence[Seat], known: Known) -> LaunchScene:
    words = words_of(spec.command)
    scene = LaunchScene(
        UNKNOWN_VERSION,
        host_entries(spec, seats),
        variables=spec.env,
        line=parse_line(words) if is_launcher(words) else None,
        fabric=spec.fabric,
        networks=known.networks,
        facts=known.facts,
        placed=True,
    )
    return scene_of(scene, dict.fromkeys(seat.node for seat in seats))
