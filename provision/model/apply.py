"""What ``apply`` did, node by node and role by role."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from provision.model.difference import Difference

__all__ = ["ApplyReport", "Failure", "NodeReport", "NodeStatus", "RoleReport", "RoleStatus"]


class NodeStatus(StrEnum):
    """How a node came out of an apply."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    SKIPPED = "skipped"
    """It has steps, and none was started, because nodes of earlier waves failed."""


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
    """Why it was, or is to be, run."""
    changes: tuple[str, ...] = ()
    """The tasks that changed something."""
    remedy: str = ""
    """What to do so that a role that waits or was skipped runs."""


@dataclass(frozen=True)
class Failure:
    """Where and why a node stopped."""

    role: str | None
    task: str
    message: str
    output: str
    remedy: str | None
    code: str = ""
    """Of the error or of the preflight's problem; empty for a failed task of Ansible."""


@dataclass(frozen=True)
class NodeReport:
    """One node's outcome."""

    name: str
    status: NodeStatus
    roles: tuple[RoleReport, ...]
    error: Failure | None = None

    @property
    def as_wanted(self) -> bool:
        """True when it ended unchanged or changed, and no role waits for a job to end."""
        return self.status in (NodeStatus.UNCHANGED, NodeStatus.CHANGED) and not self.waits

    @property
    def waits(self) -> bool:
        """True when nothing failed on it, and a role waits for a job to end."""
        ended_well = self.status in (NodeStatus.UNCHANGED, NodeStatus.CHANGED)
        return ended_well and any(role.status is RoleStatus.WAITING for role in self.roles)


@dataclass(frozen=True)
class ApplyReport:
    """The whole outcome; ``ok`` means that every node is as wanted."""

    nodes: tuple[NodeReport, ...]
    seconds: float
    tasks: int = 0
    """Remote tasks per node that ran, the largest over all nodes."""
    warnings: tuple[str, ...] = ()
    """What went wrong beside the nodes, and does not make them less as wanted."""
    differences: tuple[Difference, ...] = field(default=(), repr=False)
    """Of a run that only compared: what would change, secrets included."""

    @property
    def ok(self) -> bool:
        """True when no node failed or was unreachable, and no role waits for a job to end."""
        return all(node.as_wanted for node in self.nodes)

    @property
    def only_waits(self) -> bool:
        """True when nothing failed, and a role waits for a job to end."""
        return not self.ok and all(node.as_wanted or node.waits for node in self.nodes)
