"""What others set up on a node, as ``adopt`` finds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["NodeAdoption"]


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
