"""The current state of the objects that receipts list, and running jobs, collected by the roles' own program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from provision.facts.base import RawOutput, Unknown
from provision.facts.program import COMMAND, LIMIT_SECONDS, answer


@dataclass(frozen=True)
class Managed:
    """The current state that a node's receipts are compared with."""

    sealed: Mapping[str, bool] = field(default_factory=dict)
    """Role -> whether the seal matches its receipt; if not, something else changed the receipt."""
    observed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Role -> current state of the objects in its receipt, in the receipt's format: ``files``, ``packages``, ``units``,
    ``modules``, ``images``, ``containers``. Sections that could not be read are missing."""
    jobs: tuple[str, ...] = ()
    """Processes that belong to a job: ``process 4711 (python3 of root) holds /dev/nvidia0``."""
    hung: tuple[str, ...] = ()
    """Programs that did not answer in time."""
    brought: frozenset[str] = frozenset()
    """Packages that our transactions installed or planned; read only if a role that needs them has no receipt."""


class ManagedFact:
    """Reports the current state in the format of the receipts, without comparing it."""

    name: ClassVar[str] = "managed"
    label: ClassVar[str] = "python3 (what the receipts name)"
    limit_seconds: ClassVar[int] = LIMIT_SECONDS
    command: ClassVar[str] = COMMAND

    def parse(self, raw: RawOutput) -> Managed | Unknown:
        """Leave out sections that could not be read."""
        reply = answer(raw)
        if isinstance(reply, Unknown):
            return reply
        if reply.sealed is None or reply.observed is None or reply.jobs is None or reply.hung is None:
            return Unknown("the state of managed objects cannot be read: the probe's answer is incomplete")
        return Managed(
            sealed=reply.sealed,
            observed=reply.observed,
            jobs=tuple(map(str, reply.jobs)),
            hung=tuple(map(str, reply.hung)),
            brought=frozenset(map(str, reply.brought or ())),
        )
