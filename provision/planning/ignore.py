"""Accepted differences: ``cluster_ignore`` of the inventory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from provision.model import Node, NodePlan, Step
from provision.model.reason import Reason, reason


@dataclass(frozen=True)
class _Entry:
    what: str
    """A shell pattern that matches a part of what the plan shows, e.g. ``/etc/docker/daemon.json``."""
    owner: str
    cause: str

    def covers(self, text: str) -> bool:
        return bool(self.what) and fnmatchcase(text, f"*{self.what}*")


def with_ignored(
    plan: NodePlan, node: Node, forced: Collection[str] = (), *, text: Callable[[Reason], str]
) -> NodePlan:
    """Return the plan without the differences that the inventory accepts; they become findings.

    A role with an accepted difference waits even if it has other reasons to run, because it would undo the difference.
    """
    entries = _entries(node.variables)
    steps: list[Step] = []
    findings = list(plan.findings)
    for step in plan.steps:
        accepted = (
            {why: entry for why in step.reasons for entry in entries if entry.covers(text(why))}
            if step.role not in forced
            else {}
        )
        findings += [
            reason("plan.ignored", difference=why, owner=entry.owner, cause=entry.cause)
            for why, entry in accepted.items()
        ]
        left = tuple(why for why in step.reasons if why not in accepted)
        if accepted and left:
            owners = tuple(
                dict.fromkeys(
                    f"{entry.owner}, who keeps a difference (--force {step.role} undoes it)"
                    for entry in accepted.values()
                )
            )
            steps.append(replace(step, reasons=left, waits_for=(*step.waits_for, *owners), owners=owners))
        elif left:
            steps.append(step)
    return replace(plan, steps=tuple(steps), findings=tuple(findings))


def _entries(variables: Mapping[str, Any]) -> list[_Entry]:
    """Return the entries of the inventory; it was validated, so entries of another form are ignored."""
    value = variables.get("cluster_ignore")
    entries = [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
    return [_Entry(*(str(entry.get(key) or "") for key in ("what", "owner", "reason"))) for entry in entries]
