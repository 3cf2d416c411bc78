"""What a requirement of a profile of ``provision verify`` is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from provision.components.check import Scene, Verdict

NONE = "-"


@dataclass(frozen=True)
class Need:
    """A requirement on each node."""

    component: str
    required: str
    judge: Callable[[Scene], tuple[str, Verdict]]
    """Returns what is present (`NONE` for nothing), and the verdict."""
