"""Slurm on a node: its version, what slurmd counts there, and what slurmctld answers."""

from __future__ import annotations

from typing import ClassVar

from provision.documents import decode
from provision.documents.slurm import SlurmState
from provision.errors import InvalidDocument
from provision.facts.base import RawOutput, Unknown


class SlurmFact:
    """Starts programs of Slurm, each with its own time limit; prints nothing where Slurm is not installed."""

    name: ClassVar[str] = "slurm"
    label: ClassVar[str] = "sinfo"
    limit_seconds: ClassVar[int] = 60
    command: ClassVar[str] = "@slurm"

    def parse(self, raw: RawOutput) -> SlurmState | Unknown:
        """Return an empty state without Slurm."""
        if raw.exit_code != 0:
            return Unknown(f"Slurm cannot be queried: {raw.last_line()}")
        if not raw.stdout.strip():
            return SlurmState()
        try:
            return decode(raw.stdout, SlurmState, node="", what="Slurm's state")
        except InvalidDocument as error:
            return Unknown(error.message)
