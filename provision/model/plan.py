"""What an apply would do, node by node, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from provision.model.preflight import PackageChange, PreflightProblem
from provision.model.reason import Reason

__all__ = ["NEVER_APPLIED", "NodePlan", "Plan", "Step", "StepClass"]

NEVER_APPLIED = "plan.never_applied"
"""The code of the reason of a step whose role has no receipt on the node."""


class StepClass(StrEnum):
    """What a step can do to a job that runs on the node."""

    SAFE = "safe"
    """It disturbs no job."""
    NEEDS_IDLE = "needs-idle"
    """It can hurt a running job, and so waits until the node is idle or the operator says that it may."""
    NEEDS_REBOOT = "needs-reboot"
    """It comes into effect with a reboot only."""


@dataclass(frozen=True)
class Step:
    """One role to run on one node."""

    role: str
    step_class: StepClass
    reasons: tuple[Reason, ...]
    """Never empty."""
    waits_for: tuple[str, ...] = ()
    """The jobs and the owners that it waits for; while there are any, an apply leaves the step out."""
    owners: tuple[str, ...] = ()
    """Those of `waits_for` that are no jobs: owners of differences that the inventory preserves."""
    disturbs: tuple[str, ...] = ()
    """The running jobs that it may hurt, because the operator allows that on this node (``--disruptive``)."""
    packages: tuple[PackageChange, ...] = ()
    """The packages that it installs; filled in by the preflight."""
    files: tuple[str, ...] = ()
    """The paths that it writes; filled in by the preflight."""


@dataclass(frozen=True)
class NodePlan:
    """All steps of one node, in the order in which they run."""

    name: str
    steps: tuple[Step, ...] = ()
    error: str | None = None
    """Why nothing can be planned for the node: no login, an unsupported system, no Python."""
    remedy: str | None = None
    reachable: bool = True
    """Whether the node was logged in to; it may be so and still have an error."""
    seconds: float | None = None
    """After how many seconds the node had answered; None where it did not."""
    kept: tuple[tuple[str, str], ...] = ()
    """What others set up and the inventory does not mention: variables that keep it, with their values as JSON."""
    findings: tuple[Reason, ...] = ()
    """Problems that no apply can fix, and what could not be probed."""
    problems: tuple[PreflightProblem, ...] = ()
    """What would make the steps fail; filled in by the preflight."""
    dependencies: tuple[PackageChange, ...] = ()
    """Packages that are installed because those of the steps depend on them; filled in by the preflight."""


@dataclass(frozen=True)
class Plan:
    """The plan of all nodes that were asked for."""

    nodes: tuple[NodePlan, ...]

    @property
    def converged(self) -> bool:
        """True when there is nothing to do and every node could be seen."""
        return not any(node.steps or node.error or not node.reachable for node in self.nodes)

    @property
    def problems(self) -> bool:
        """True when the preflight found something that would make an apply fail."""
        return any(node.problems for node in self.nodes)
