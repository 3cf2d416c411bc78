"""Causes of a step: why a role has to run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from provision.model.reason import Reason

NODES = "(nodes of the cluster)"
"""Variable of roles that depend on other nodes: the names and data addresses of all nodes."""
_MOST_LETTERS = 100


class CauseKind(StrEnum):
    """Kind of difference that requires a role to run."""

    RECEIPT = "receipt"
    """There is no usable receipt."""
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
    """The operator requested it (``--force``)."""


@dataclass(frozen=True)
class Cause:
    """One cause of a step."""

    kind: CauseKind
    name: str
    """Name of the variable, path, unit or check; for `NEED`, of the other role."""
    reason: Reason


def shown(value: Any) -> str:
    """Return a value from a node as printable text on one line; a receipt may contain any value."""
    text = "".join(letter if letter.isprintable() else "?" for letter in str(value))
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."
