"""Plans: the steps of an apply per node, with their reasons."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from provision.model.preflight import PackageChange, PreflightProblem
from provision.model.reason import Reason

NEVER_APPLIED = "plan.never_applied"
"""The code of the reason of a step whose role has no receipt on the node."""


class StepClass(StrEnum):
    """Effect of a step on running jobs of the node."""

    SAFE = "safe"
    """It does not affect jobs."""
    NEEDS_IDLE = "needs-idle"
    """It is disruptive: it requires an idle node, or ``--disruptive``."""
    NEEDS_REBOOT = "needs-reboot"
    """It reboots an idle node: it requires ``--reboot`` or an open maintenance window."""


@dataclass(frozen=True)
class Step:
    """A role that apply runs on one node."""

    role: str
    step_class: StepClass
    reasons: tuple[Reason, ...]
    """Never empty."""
    waits_for: tuple[str, ...] = ()
    """Jobs and owners that block the step. While there are any, an apply skips the step."""
    owners: tuple[str, ...] = ()
    """Entries of `waits_for` that are not jobs: owners of differences that the inventory preserves."""
    schedule: tuple[str, ...] = ()
    """Entries of `waits_for` that are not jobs: the maintenance window, or the option, that a reboot requires."""
    disturbs: tuple[str, ...] = ()
    """Running jobs that it may interrupt, because the operator allows that on this node (``--disruptive``)."""
    packages: tuple[PackageChange, ...] = ()
    """Packages that it installs; set by the preflight."""
    files: tuple[str, ...] = ()
    """Paths that it writes; set by the preflight."""


@dataclass(frozen=True)
class NodePlan:
    """The steps of one node, in execution order."""

    name: str
    steps: tuple[Step, ...] = ()
    error: str | None = None
    """Why the node has no plan: the connection failed, the system is not supported, or Python is missing."""
    remedy: str | None = None
    error_code: str = ""
    """The code of the error."""
    reachable: bool = True
    """Whether the connection succeeded. A reachable node can have an error."""
    seconds: float | None = None
    """Duration of the probe in seconds; None without an answer."""
    preserved: tuple[tuple[str, str], ...] = ()
    """Pre-existing configuration that is not in the inventory: variables that preserve it, with JSON values."""
    findings: tuple[Reason, ...] = ()
    """Problems that no apply can fix, and unknown facts."""
    problems: tuple[PreflightProblem, ...] = ()
    """Problems that would make the steps fail; set by the preflight."""
    dependencies: tuple[PackageChange, ...] = ()
    """Packages that are installed as dependencies of the steps' packages; set by the preflight."""


@dataclass(frozen=True)
class Plan:
    """The plan of all selected nodes."""

    nodes: tuple[NodePlan, ...]

    @property
    def converged(self) -> bool:
        """True if there are no steps and every probe succeeded."""
        return not any(node.steps or node.error or not node.reachable for node in self.nodes)

    @property
    def problems(self) -> bool:
        """True if the preflight found problems that would make an apply fail."""
        return any(node.problems for node in self.nodes)
