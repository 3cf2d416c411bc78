"""The answer of the probe's function ``managed``, which several facts read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

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
