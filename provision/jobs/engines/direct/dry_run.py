"""What would be started, without starting it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provision.batch import mpi
from provision.batch.containers import NodeHardware, create_words
from provision.batch.ranks import by_container, seats_of
from provision.batch.units import unit_name, unit_of
from provision.jobs.attempt import Attempt, command_of, environment_of, image_of
from provision.jobs.attempt_start import Extras
from provision.jobs.cluster_snapshot import Known
from provision.jobs.command_check import line_notes
from provision.jobs.engines.base import Secrets
from provision.jobs.engines.direct.placement import Placed
from provision.jobs.files.unit_words import unit_words
from provision.model.job import JobSpec, Kind, Seat
from provision.model.job_views import DryRun

__all__ = ["dry_run"]

DRY_PORT = 23456
"""What the documents have; a started job gets a port that is free."""


def dry_run(spec: JobSpec, placed: Placed, known: Known, extras: Extras | None = None) -> DryRun:
    """Say what would be started on the places that were found, with the mounts of `extras`."""
    if not placed.places:
        return DryRun((), placed.reason, {}, {})
    seats = seats_of(spec, placed.places)
    attempt = Attempt(spec, "dry-run", 1, {}, seats, Secrets(), known)
    environment: dict[str, Mapping[str, str]] = {}
    commands: dict[str, Sequence[str]] = {}
    files: dict[str, str] = {}
    logins = []
    if spec.kind is Kind.MPI:
        address = {seat.node: seat.address for seat in seats}
        logins = [mpi.Login(name, address[name], 0, "", "") for name in attempt.nodes]
        files |= mpi.host_files(spec, seats)
    for name, inside in by_container(seats).items():
        seat = inside[0]
        hidden = dict.fromkeys(spec.secret_env, "[secret]")
        environment[seat.instance] = {**environment_of(attempt, seat, DRY_PORT), **hidden}
        mounts = extras.mounts(spec, seat.node) if extras else ()
        words = _words(attempt, inside, mounts, command_of(attempt, seat, logins))
        commands[name if not seat.chief else seat.instance] = words
    return DryRun(seats, "", environment, commands, files, (*placed.warnings, *line_notes(spec, seats, known)))


def _words(attempt: Attempt, inside: Sequence[Seat], mounts: Sequence[str], entry: Sequence[str]) -> tuple[str, ...]:
    """Return the command of docker, or of systemd, for what some instances live in."""
    spec, seat = attempt.spec, inside[0]
    hardware = attempt.known.hardware.get(seat.node, NodeHardware())
    if spec.no_container:
        unit = unit_of(spec, hardware=hardware, folder=attempt.folder, mounts=mounts, entry=entry)
        return (*unit_words(unit_name(seat, attempt.number), unit), "--", *entry)
    words = create_words(
        spec,
        inside,
        image_of(spec, seat),
        labels={"provision.job": spec.name},
        hardware=hardware,
        folder=attempt.folder,
        mounts=mounts,
        entry=entry,
    )
    return ("docker", "create", *words)
