"""What a reset would do, or did, on a node."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from provision.model.apply import Failure

__all__ = ["NodeReset", "ResetResult"]


class ResetResult(StrEnum):
    """How it stands with a node."""

    PLANNED = "planned"
    """There is something to undo, and nothing was done yet."""
    NOTHING = "nothing"
    """There is nothing to undo."""
    RESET = "reset"
    REFUSED = "refused"
    """A job, or what others have in docker, is in the way: nothing was changed."""
    FAILED = "failed"
    UNREACHABLE = "unreachable"

    @property
    def ok(self) -> bool:
        """True where nothing stood in the way."""
        return self in {ResetResult.PLANNED, ResetResult.NOTHING, ResetResult.RESET}


@dataclass(frozen=True)
class NodeReset:
    """One node."""

    name: str
    result: ResetResult
    steps: tuple[str, ...] = ()
    """What would be, or was, done, in its order."""
    left: tuple[str, ...] = ()
    """What stays, and why."""
    refused: tuple[str, ...] = ()
    error: Failure | None = None
