"""The causes for which a role has to run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["NODES", "Cause", "CauseKind", "shown"]

NODES = "(nodes of the cluster)"
"""Stands among the variables of roles that read other nodes: the nodes' names and data addresses."""
_MOST_LETTERS = 100


class CauseKind(StrEnum):
    """Where it was seen that a role has to run."""

    RECEIPT = "receipt"
    """There is no receipt that could be gone by."""
    CODE = "code"
    VARIABLE = "variable"
    FILE = "file"
    PACKAGE = "package"
    UNIT = "unit"
    MODULE = "module"
    IMAGE = "image"
    CONTAINER = "container"
    CHECK = "check"
    NEED = "need"
    """The step of another role on the same node wants it."""
    PARTNER = "partner"
    """The step of the same role on another node wants it."""
    FORCED = "forced"
    """The operator asks for it (``--force``)."""


@dataclass(frozen=True)
class Cause:
    """One cause for which a role has to run."""

    kind: CauseKind
    name: str
    """Of what it is about: a variable, a path, a unit, a check's id, for a need the other role."""
    reason: str
    """A sentence without its full stop."""


def shown(value: Any) -> str:
    """Return a value that came from a node as text for one line: a receipt may hold anything."""
    text = "".join(letter if letter.isprintable() else "?" for letter in str(value))
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."
