"""What is odd about a typed mpirun line on the nodes that a job was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provision.batch.inference import words_of
from provision.batch.ranks import slots
from provision.checks.launch_lint import LaunchScene, lint
from provision.commands.mca import Parameter
from provision.commands.mpirun_words import is_launcher, parse_line
from provision.errors import UsageError
from provision.jobs.engines.direct.known import Known
from provision.launchers import HostEntry
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
    line = parse_line(words) if is_launcher(words) else None
    typed: Mapping[str, str | None] = line.variables if line else {}
    given = {**spec.env, **{name: value for name, value in typed.items() if value is not None}}
    by_environment = [
        Parameter("environment", name.removeprefix("OMPI_MCA_"), value)
        for name, value in given.items()
        if name.startswith("OMPI_MCA_")
    ]
    addresses = {seat.node: seat.address for seat in seats}
    kind = "gpu" if spec.gpus else "cpu"
    entries = [HostEntry(name, addresses[name], count, kind) for name, count in slots(spec, seats).items()]
    return LaunchScene(
        UNKNOWN_VERSION,
        entries,
        variables=given,
        parameters=[*(line.parameters if line else ()), *by_environment],
        line=line,
        fabric=spec.fabric,
        networks={name: known.networks[name] for name in addresses if name in known.networks},
        facts={name: known.facts[name] for name in addresses if name in known.facts},
        placed=True,
    )
