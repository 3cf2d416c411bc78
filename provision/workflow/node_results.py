"""What is known so far of how every node came out of an apply."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from provision.components import ROLES
from provision.errors import ConnectionFailed, ProvisionError
from provision.model import ApplyReport, Failure, NodePlan, NodeReport, NodeStatus, RoleReport, RoleStatus, Step
from provision.report.reasons import messages

if TYPE_CHECKING:
    from provision.workflow.plan import PlanResult


@dataclass
class _Node:
    roles: dict[str, RoleReport] = field(default_factory=dict)
    changed: bool = False
    error: Failure | None = None
    status: NodeStatus | None = None
    """Where something failed: how."""
    plan: NodePlan | None = None
    """Of the newest probe."""
    variables: Mapping[str, Any] | None = None
    """None as long as nothing is known of the node."""


class NodeResults:
    """Collects the results of probes and runs by node, in the order of `names`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._nodes = {name: _Node() for name in names}
        self._started = time.monotonic()
        self.tasks = 0
        self.warnings: list[str] = []

    def add_seconds(self, seconds: float) -> None:
        """Add the time of an earlier probe."""
        self._started -= seconds

    def can_continue(self, name: str) -> bool:
        """Return whether nothing has failed on the node."""
        return self._nodes[name].error is None

    def failed(self, names: Iterable[str]) -> int:
        """Return on how many of the nodes something has failed."""
        return sum(not self.can_continue(name) for name in names)

    def add_probe(self, result: PlanResult) -> dict[str, NodeStatus]:
        """Record a probe result; return the nodes that it lost."""
        lost: dict[str, NodeStatus] = {}
        for plan in result.plan.nodes:
            node = self._nodes[plan.name]
            node.plan = plan
            if plan.name in result.facts:
                node.variables = result.cluster.node(plan.name).variables
            error = result.errors.get(plan.name)
            if error is not None and node.error is None:
                self.fail(plan.name, "connect", error, lost=isinstance(error, ConnectionFailed))
                lost[plan.name] = NodeStatus.UNREACHABLE if isinstance(error, ConnectionFailed) else NodeStatus.FAILED
        return lost

    def fail(self, name: str, task: str, error: ProvisionError, *, role: str | None = None, lost: bool = False) -> None:
        """Take it that the node failed, and why."""
        node = self._nodes[name]
        node.status = NodeStatus.UNREACHABLE if lost else NodeStatus.FAILED
        node.error = Failure(role, task, error.message, error.output, error.remedy, error.code)

    def refuse(self, plan: NodePlan) -> None:
        """Record that the preflight failed on a node, with every problem; nothing was started there."""
        first, *others = plan.problems
        output = "\n".join(f"{item.role}: {item.object}: {item.problem}. {item.remedy}" for item in others)
        node = self._nodes[plan.name]
        message = f"{first.object}: {first.problem}"
        node.status, node.error = (
            NodeStatus.FAILED,
            Failure(first.role, "preflight", message, output, first.remedy, first.code.value),
        )

    def changed(self, name: str, steps: Iterable[Step]) -> None:
        """Record that these steps ran on a node and changed it."""
        node = self._nodes[name]
        node.changed = True
        for step in steps:
            node.roles[step.role] = RoleReport(step.role, RoleStatus.CHANGED, tuple(messages(step.reasons, name)))

    def ran(self, report: ApplyReport, reasons: Mapping[str, Mapping[str, tuple[str, ...]]]) -> None:
        """Take what a run of Ansible did; `reasons` say for each node and role why it was run."""
        self.tasks += report.tasks
        self.warnings += report.warnings
        for done in report.nodes:
            node = self._nodes[done.name]
            node.changed |= done.status is NodeStatus.CHANGED
            for role in done.roles:
                node.changed |= role.status is RoleStatus.CHANGED
                node.roles[role.role] = _merged(node.roles.get(role.role), role, reasons[done.name].get(role.role, ()))
            if done.error:
                node.error, node.status = done.error, done.status

    def judge(self, names: Iterable[str], *, last_roles: frozenset[str], hint: str) -> None:
        """Mark nodes as failed that have not converged although all roles ran, according to the newest probe."""
        for name in names:
            node = self._nodes[name]
            steps = node.plan.steps if node.plan and not node.error else ()
            left = [step for step in steps if not step.waits_for and step.role not in last_roles]
            if left:
                message = (
                    f"the role ran, and the final probe still reports: {'; '.join(messages(left[0].reasons, name))}"
                )
                node.error, node.status = Failure(left[0].role, "final probe", message, "", hint), NodeStatus.FAILED
                node.roles[left[0].role] = RoleReport(
                    left[0].role, RoleStatus.FAILED, tuple(messages(left[0].reasons, name))
                )

    def skip(self, names: Iterable[str], why: str, remedy: str) -> None:
        """Record that none of the nodes' steps was started; a node that failed by itself stays failed."""
        for name in names:
            node = self._nodes[name]
            if node.error is None:
                node.status = NodeStatus.SKIPPED
            for step in node.plan.steps if node.plan else ():
                node.roles[step.role] = RoleReport(
                    step.role, RoleStatus.SKIPPED, (why, *messages(step.reasons, name)), remedy=remedy
                )

    def report(self) -> ApplyReport:
        """Return what is known as a report."""
        seconds = round(time.monotonic() - self._started, 1)
        return ApplyReport(tuple(map(self.of, self._nodes)), seconds, self.tasks, tuple(self.warnings))

    def of(self, name: str) -> NodeReport:
        """Return what is known of one node; roles that needed nothing are named too."""
        node = self._nodes[name]
        roles = dict(node.roles)
        for step in node.plan.steps if node.plan else ():
            if step.waits_for and node.status is not NodeStatus.SKIPPED:
                why = (*messages(step.reasons, name), *(f"waits for: {job}" for job in step.waits_for))
                roles[step.role] = RoleReport(step.role, RoleStatus.WAITING, why, remedy=_remedy(name, step))
        for role in ROLES if node.variables is not None else ():
            off = (node.variables or {}).get(f"{role}_enabled") is False
            roles.setdefault(role, RoleReport(role, RoleStatus.SKIPPED if off else RoleStatus.UNCHANGED))
        status = node.status or (NodeStatus.CHANGED if node.changed else NodeStatus.UNCHANGED)
        order = {role: number for number, role in enumerate(ROLES)}
        return NodeReport(name, status, tuple(sorted(roles.values(), key=lambda r: order.get(r.role, -1))), node.error)


def _remedy(name: str, step: Step) -> str:
    """Return how a step that waits is brought to run: jobs end, an owner's difference does not."""
    jobs = [job for job in step.waits_for if job not in step.owners and job not in step.schedule]
    undo = f"To run it in spite of the preserved difference, add: --limit {name} --force {step.role}"
    end = f"Apply again when the jobs have ended, or, to disturb them, add: --limit {name} --disruptive {name}"
    reboot = f"To reboot idle nodes now, run: provision apply --limit {name} --reboot"
    remedies = ((jobs, end), (step.schedule, reboot), (step.owners, undo))
    return " ".join(text for applies, text in remedies if applies)


def _merged(before: RoleReport | None, now: RoleReport, why: tuple[str, ...]) -> RoleReport:
    """Return the outcome of a role after one more run: changed stays changed unless it failed."""
    unchanged = (RoleStatus.UNCHANGED, RoleStatus.SKIPPED)
    stays_changed = before is not None and before.status is RoleStatus.CHANGED and now.status in unchanged
    status = RoleStatus.CHANGED if stays_changed else now.status
    reasons = why or (before.reasons if before else ()) or now.reasons
    return RoleReport(now.role, status, reasons, (*(before.changes if before else ()), *now.reasons))


def history_entry(node: NodeReport) -> dict[str, Any]:
    """Return what a history keeps of how it went on a node."""
    changed = [role.role for role in node.roles if role.status is RoleStatus.CHANGED]
    status = RoleStatus.WAITING.value if node.waits else node.status.value
    return {"status": status, "roles": changed, "message": node.error.message if node.error else ""}
