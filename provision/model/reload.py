"""What came of loading the peer-memory module by hand."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["NodeReload", "ReloadResult"]


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
    reason: str
    """One sentence; never empty."""
    remedy: str | None = None
    """What to do; given unless the result is ready or skipped."""
    provider: str = ""
    """``dma_buf``, ``nvidia_peermem``, ``nv_peer_mem``; empty where none is known."""
    module: str = ""
    """Empty where the provider needs none."""
    cause: str = ""
    """The status file's word for what is wrong, for scripts."""
    simulated: bool = False
