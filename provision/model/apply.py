"""Results of ``apply`` per node and role."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from provision.model.difference import Difference


class NodeStatus(StrEnum):
    """Result of an apply on one node."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    SKIPPED = "skipped"
    """It has steps, and none was started because nodes of earlier waves failed."""


class RoleStatus(StrEnum):
    """Result of one role on one node."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    FAILED = "failed"
    SKIPPED = "skipped"
    WAITING = "waiting"


@dataclass(frozen=True)
class RoleReport:
    """Result of one role on one node, with its reasons and changes."""

    role: str
    status: RoleStatus
    reasons: tuple[str, ...] = ()
    """Why the step runs."""
    changes: tuple[str, ...] = ()
    """The tasks that changed something."""
    remedy: str = ""
    """How to run a role that waits or was skipped."""


@dataclass(frozen=True)
class Failure:
    """The role and task at which a node failed, and why."""

    role: str | None
    task: str
    message: str
    output: str
    remedy: str | None
    code: str = ""
    """Of the error, of the preflight's problem, or of the module that failed; empty for other tasks of Ansible."""


@dataclass(frozen=True)
class NodeReport:
    """Result of an apply on one node, with its roles."""

    name: str
    status: NodeStatus
    roles: tuple[RoleReport, ...]
    error: Failure | None = None

    @property
    def is_converged(self) -> bool:
        """True if nothing failed and no role waits for a job to end."""
        return self.status in (NodeStatus.UNCHANGED, NodeStatus.CHANGED) and not self.waits

    @property
    def waits(self) -> bool:
        """True if nothing failed and a role waits for a job to end."""
        ended_well = self.status in (NodeStatus.UNCHANGED, NodeStatus.CHANGED)
        return ended_well and any(role.status is RoleStatus.WAITING for role in self.roles)


WAITING_EXIT_CODE = 6
"""The exit code of an apply without failures in which a step waits for jobs to end."""


@dataclass(frozen=True)
class ApplyReport:
    """Result of an apply on all nodes; ``ok`` means that every node has converged."""

    nodes: tuple[NodeReport, ...]
    seconds: float
    tasks: int = 0
    """The largest number of remote tasks that ran on one node."""
    warnings: tuple[str, ...] = ()
    """Problems on the controller that do not affect the state of the nodes."""
    differences: tuple[Difference, ...] = field(default=(), repr=False)
    """Pending changes of a run that only compares, including secrets."""

    @property
    def ok(self) -> bool:
        """True if no node failed or was unreachable, and no role waits for a job to end."""
        return all(node.is_converged for node in self.nodes)

    @property
    def only_waits(self) -> bool:
        """True if nothing failed and a role waits for a job to end."""
        return not self.ok and all(node.is_converged or node.waits for node in self.nodes)

    @property
    def exit_code(self) -> int:
        """The exit code of ``apply``."""
        return 0 if self.ok else WAITING_EXIT_CODE if self.only_waits else 1
