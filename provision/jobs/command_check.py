"""Check of a typed mpirun command on the nodes of a job."""

from __future__ import annotations

from collections.abc import Sequence

from provision.batch.inference import words_of
from provision.batch.mpi import host_entries
from provision.checks.launch_lint import LaunchScene, lint
from provision.checks.launch_scene import scene_of
from provision.commands.mpirun_words import is_launcher, parse_line
from provision.errors import UsageError
from provision.jobs.cluster_snapshot import ClusterSnapshot
from provision.model.job import Assignment, JobSpec, Kind

UNKNOWN_VERSION = 0
"""The version of Open MPI in the image is not known before the start."""


def command_notes(spec: JobSpec, assignments: Sequence[Assignment], snapshot: ClusterSnapshot) -> tuple[str, ...]:
    """Return warnings about variables, parameters and flags of an mpi job.

    Raises:
        UsageError: the command fails on these nodes, and --no-lint is not given.
    """
    if spec.kind is not Kind.MPI:
        return ()
    findings = lint(_scene(spec, assignments, snapshot))
    worst = next((finding for finding in findings if finding.fails), None)
    if worst is not None and spec.lint:
        raise UsageError(str(worst), remedy=f"{worst.remedy} --no-lint starts it all the same.")
    return tuple(f"{finding} ({finding.remedy})" for finding in findings)


def _scene(spec: JobSpec, assignments: Sequence[Assignment], snapshot: ClusterSnapshot) -> LaunchScene:
    words = words_of(spec.command)
    scene = LaunchScene(
        UNKNOWN_VERSION,
        host_entries(spec, assignments),
        variables=spec.env,
        line=parse_line(words) if is_launcher(words) else None,
        fabric=spec.fabric,
        networks=snapshot.networks,
        facts=snapshot.facts,
        placed=True,
    )
    return scene_of(scene, dict.fromkeys(assignment.node for assignment in assignments))
