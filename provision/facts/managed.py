"""What is there of what the receipts name, and which jobs run: looked at by the roles' own program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from provision.facts.base import RawOutput, Unknown
from provision.facts.program import COMMAND, LIMIT_SECONDS, answer

__all__ = ["Managed", "ManagedFact"]


@dataclass(frozen=True)
class Managed:
    """What a node's receipts are compared with."""

    sealed: Mapping[str, bool] = field(default_factory=dict)
    """Role -> does the seal beside its receipt fit it; where not, other hands have written the receipt."""
    observed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Role -> what is there now of what its receipt names, in the receipt's form: ``files``, ``packages``, ``units``,
    ``modules``, ``images``, ``containers``. A section that could not be looked at is not there."""
    jobs: tuple[str, ...] = ()
    """The processes that are part of a job: ``process 4711 (python3 of root) holds /dev/nvidia0``."""
    hung: tuple[str, ...] = ()
    """The programs that did not answer in time."""
    brought: frozenset[str] = frozenset()
    """Packages that came, or were to come, with us; asked for only where a role that goes by it has no receipt."""


class ManagedFact:
    """Compares nothing: it tells what is there, in the form of the receipts."""

    name: ClassVar[str] = "managed"
    label: ClassVar[str] = "python3 (what the receipts name)"
    limit_seconds: ClassVar[int] = LIMIT_SECONDS
    command: ClassVar[str] = COMMAND

    def parse(self, raw: RawOutput) -> Managed | Unknown:
        """A section that could not be looked at is not there."""
        found = answer(raw)
        if isinstance(found, Unknown):
            return found
        if found.sealed is None or found.observed is None or found.jobs is None or found.hung is None:
            return Unknown("what the receipts name cannot be read: the probe's program left out a part")
        return Managed(
            sealed=found.sealed,
            observed=found.observed,
            jobs=tuple(map(str, found.jobs)),
            hung=tuple(map(str, found.hung)),
            brought=frozenset(map(str, found.brought or ())),
        )
