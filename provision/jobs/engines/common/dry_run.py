"""The plan of a job without starting it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provision.batch import mpi
from provision.batch.containers import NodeHardware, create_words
from provision.batch.ranks import assignments_of, by_container
from provision.batch.units import unit_name, unit_of
from provision.jobs.attempt import Attempt, command_of, environment_of, image_of
from provision.jobs.cluster_snapshot import ClusterSnapshot
from provision.jobs.command_check import command_notes
from provision.jobs.engines.base import Secrets
from provision.jobs.engines.common.placement import PlacementResult
from provision.jobs.extras import JobExtras
from provision.model.job import Assignment, JobSpec, Kind
from provision.model.job_views import DryRun
from provision.model.reason import NO_REASON
from provision.node.unit.command_line import unit_words
from provision.report.reasons import message

DRY_PORT = 23456
"""An example; a started job gets a free port."""


def dry_run(
    spec: JobSpec, placement: PlacementResult, snapshot: ClusterSnapshot, extras: JobExtras | None = None
) -> DryRun:
    """Return what would be started on the chosen places, with the mounts of `extras`."""
    if not placement.places:
        return DryRun((), placement.reason, {}, {})
    assignments = assignments_of(spec, placement.places)
    attempt = Attempt(spec, "dry-run", 1, {}, assignments, Secrets(), snapshot)
    environment: dict[str, Mapping[str, str]] = {}
    commands: dict[str, Sequence[str]] = {}
    files: dict[str, str] = {}
    logins = []
    if spec.kind is Kind.MPI:
        address = {assignment.node: assignment.address for assignment in assignments}
        logins = [mpi.Login(name, address[name], 0, "", "") for name in attempt.nodes]
        files |= mpi.host_files(spec, assignments)
    for name, inside in by_container(assignments).items():
        assignment = inside[0]
        hidden = dict.fromkeys(spec.secret_env, "[secret]")
        environment[assignment.instance] = {**environment_of(attempt, assignment, DRY_PORT), **hidden}
        mounts = extras.mounts(spec, assignment.node) if extras else ()
        words = _words(attempt, inside, mounts, command_of(attempt, assignment, logins))
        commands[name if not assignment.is_leader else assignment.instance] = words
    return DryRun(
        assignments,
        NO_REASON,
        environment,
        commands,
        files,
        (*map(message, placement.warnings), *command_notes(spec, assignments, snapshot)),
    )


def _words(
    attempt: Attempt, inside: Sequence[Assignment], mounts: Sequence[str], entry: Sequence[str]
) -> tuple[str, ...]:
    """Return the command of Docker or systemd for the container or unit of some instances."""
    spec, assignment = attempt.spec, inside[0]
    hardware = attempt.snapshot.hardware.get(assignment.node, NodeHardware())
    if spec.no_container:
        unit = unit_of(spec, hardware=hardware, folder=attempt.folder, mounts=mounts, entry=entry)
        return (*unit_words(unit_name(assignment, attempt.number), unit), "--", *entry)
    words = create_words(
        spec,
        inside,
        image_of(spec, assignment),
        labels={"provision.job": spec.name},
        hardware=hardware,
        folder=attempt.folder,
        mounts=mounts,
        entry=entry,
    )
    return ("docker", "create", *words)
