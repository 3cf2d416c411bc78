"""Results of ``adopt``, ``reload`` and ``reset`` on one node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from provision.model.apply import Failure
from provision.model.reason import Reason


@dataclass(frozen=True)
class NodeAdoption:
    """Pre-existing configuration of one node, for ``adopt``."""

    name: str
    settings: tuple[str, ...] = ()
    """The pre-existing settings, one sentence each without a full stop."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """Variables that preserve these settings and that the inventory does not set."""
    error: str | None = None
    """Why the probe of the node failed."""
    remedy: str | None = None
    reachable: bool = True
    error_code: str = ""
    """The code of the error."""


class ReloadResult(StrEnum):
    """Result of a reload on one node."""

    READY = "ready"
    FAILED = "failed"
    """The module was loaded, and the node's check failed."""
    REFUSED = "refused"
    """The node is busy, or the module is in use. Nothing was changed."""
    SKIPPED = "skipped"
    """There is nothing to load: the role was never applied, requires no module, or is disabled."""
    UNREACHABLE = "unreachable"

    @property
    def ok(self) -> bool:
        """True if nothing is left to do."""
        return self in {ReloadResult.READY, ReloadResult.SKIPPED}


@dataclass(frozen=True)
class NodeReload:
    """Result of a reload on one node, with its reason."""

    name: str
    result: ReloadResult
    reason: Reason
    """It has a remedy unless the result is ready or skipped."""
    provider: str = ""
    """``dma_buf``, ``nvidia_peermem`` or ``nv_peer_mem``; empty if it is unknown."""
    module: str = ""
    """Empty if the provider needs no module."""
    cause: str = ""
    """The cause in the status file, for scripts."""
    simulated: bool = False


class ResetResult(StrEnum):
    """State of the reset of one node."""

    PLANNED = "planned"
    """There is something to undo, and nothing was changed yet."""
    NOTHING = "nothing"
    """There is nothing to undo."""
    RESET = "reset"
    REFUSED = "refused"
    """A job, or another user's containers or images, prevent the reset. Nothing was changed."""
    FAILED = "failed"
    UNREACHABLE = "unreachable"

    @property
    def ok(self) -> bool:
        """True if nothing prevents or prevented the reset."""
        return self in {ResetResult.PLANNED, ResetResult.NOTHING, ResetResult.RESET}


@dataclass(frozen=True)
class NodeReset:
    """Reset of one node."""

    name: str
    result: ResetResult
    steps: tuple[str, ...] = ()
    """The actions, in order."""
    left: tuple[str, ...] = ()
    """What remains on the node, and why."""
    refused: tuple[str, ...] = ()
    error: Failure | None = None
