"""The current state of the objects that receipts list, running jobs and the Docker engine, from one function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from provision.documents import decode
from provision.documents.probe import EngineAnswer, EngineContainer, EngineImage, EngineInfo, ProbeAnswer
from provision.errors import InvalidDocument
from provision.facts.base import RawOutput, Unknown

FOLDER = "/var/lib/provision/receipts"
LIMIT_SECONDS = 40
COMMAND = "@managed"


def answer(raw: RawOutput) -> ProbeAnswer | Unknown:
    """Return the program's answer, which is parsed once for all facts."""
    return _read(raw.stdout) if raw.exit_code == 0 else Unknown(raw.last_line())


@functools.lru_cache(maxsize=64)
def _read(text: str) -> ProbeAnswer | Unknown:
    try:
        return decode(text, ProbeAnswer, node="", what="the probe's program")
    except InvalidDocument as error:
        return Unknown(error.message)


E = TypeVar("E", EngineInfo, EngineImage, EngineContainer)


def engine_answer(raw: RawOutput, choose: Callable[[EngineAnswer], E | None], label: str) -> E | Unknown | None:
    """Return a part of the engine's answer; None if the engine answered that there is no such object."""
    reply = answer(raw)
    if isinstance(reply, Unknown):
        return reply
    if reply.engine is None:
        return Unknown(f"{label}: the Docker engine was not queried")
    part = choose(reply.engine)
    if part is not None and part.hung is not None:
        return Unknown(f"hung: {label} (no end within {part.hung:g} s)")
    if part is not None and part.error:
        return Unknown(f"{label} failed: {part.error}")
    return part


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
