"""The causes for which a role has to run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from provision.model.reason import Reason

__all__ = ["NODES", "Cause", "CauseKind", "shown"]

NODES = "(nodes of the cluster)"
"""A pseudo-variable of roles that read other nodes: the nodes' names and data addresses."""
_MOST_LETTERS = 100


class CauseKind(StrEnum):
    """What shows that a role has to run."""

    RECEIPT = "receipt"
    """There is no valid receipt."""
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
    """The step of another role on the same node requires it."""
    PARTNER = "partner"
    """The step of the same role on another node requires it."""
    FORCED = "forced"
    """The operator requests it (``--force``)."""


@dataclass(frozen=True)
class Cause:
    """One cause for which a role has to run."""

    kind: CauseKind
    name: str
    """The object: a variable, a path, a unit, a check's id, or for a need the other role."""
    reason: Reason


def shown(value: Any) -> str:
    """Return a value that came from a node as text for one line: a receipt may hold anything."""
    text = "".join(letter if letter.isprintable() else "?" for letter in str(value))
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."
