"""Results of ``adopt``, ``reload`` and ``reset`` on one node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from provision.model.apply import Failure
from provision.model.reason import Reason

__all__ = ["NodeAdoption", "NodeReload", "NodeReset", "ReloadResult", "ResetResult"]


@dataclass(frozen=True)
class NodeAdoption:
    """One node."""

    name: str
    found: tuple[str, ...] = ()
    """What stands there, a sentence each without a full stop; empty where nothing is to be recorded."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """The variables that keep it, and that the inventory does not set."""
    error: str | None = None
    """Why nothing could be seen of the node."""
    remedy: str | None = None
    reachable: bool = True


class ReloadResult(StrEnum):
    """How it ended on a node."""

    READY = "ready"
    FAILED = "failed"
    """It was tried, and the node's check did not pass."""
    REFUSED = "refused"
    """The node is busy, or the module in use: nothing was changed."""
    SKIPPED = "skipped"
    """There is nothing to load: the role was never applied, wants nothing, or is switched off."""
    UNREACHABLE = "unreachable"

    @property
    def ok(self) -> bool:
        """True where nothing is left to be done."""
        return self in {ReloadResult.READY, ReloadResult.SKIPPED}


@dataclass(frozen=True)
class NodeReload:
    """One node's outcome."""

    name: str
    result: ReloadResult
    reason: Reason
    """It has a remedy unless the result is ready or skipped."""
    provider: str = ""
    """``dma_buf``, ``nvidia_peermem``, ``nv_peer_mem``; empty where none is known."""
    module: str = ""
    """Empty where the provider needs none."""
    cause: str = ""
    """The status file's word for what is wrong, for scripts."""
    simulated: bool = False


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
