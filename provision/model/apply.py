"""What ``apply`` did, node by node and role by role."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["ApplyReport", "Failure", "NodeReport", "NodeStatus", "RoleReport", "RoleStatus"]


class NodeStatus(StrEnum):
    """How a node came out of an apply."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    FAILED = "failed"
    UNREACHABLE = "unreachable"


class RoleStatus(StrEnum):
    """How one role ended on one node."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    FAILED = "failed"
    SKIPPED = "skipped"
    WAITING = "waiting"


@dataclass(frozen=True)
class RoleReport:
    """One role on one node."""

    role: str
    status: RoleStatus
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """Where and why a node stopped."""

    role: str | None
    task: str
    message: str
    output: str
    remedy: str | None


@dataclass(frozen=True)
class NodeReport:
    """One node's outcome."""

    name: str
    status: NodeStatus
    roles: tuple[RoleReport, ...]
    error: Failure | None = None


@dataclass(frozen=True)
class ApplyReport:
    """The whole outcome; ``ok`` means that no node failed or was unreachable."""

    nodes: tuple[NodeReport, ...]
    seconds: float
    tasks: int = 0
    """Remote tasks per node that ran, the largest over all nodes."""
    warnings: tuple[str, ...] = ()
    """What went wrong beside the nodes, and does not make them less as wanted."""

    @property
    def ok(self) -> bool:
        """True when every node ended unchanged or changed."""
        return all(node.status in (NodeStatus.UNCHANGED, NodeStatus.CHANGED) for node in self.nodes)
