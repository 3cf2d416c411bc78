"""Local differences that somebody wants kept: ``cluster_ignore`` of the inventory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from provision.model import Node, NodePlan, Step

__all__ = ["with_ignored"]


@dataclass(frozen=True)
class _Entry:
    what: str
    """A pattern as of a shell that a part of the reason has to match, such as ``/etc/docker/daemon.json``."""
    owner: str
    reason: str

    def covers(self, text: str) -> bool:
        return fnmatchcase(text, f"*{self.what}*")


def with_ignored(plan: NodePlan, node: Node, forced: Collection[str] = ()) -> NodePlan:
    """Return the plan without the differences that the inventory says to keep; they become findings.

    A role runs whole, so one that has a difference to keep waits even where there are other reasons to run it, unless
    it is among the `forced`.
    """
    entries = _entries(node.variables)
    steps: list[Step] = []
    findings = list(plan.findings)
    for step in plan.steps:
        kept = (
            {reason: entry for reason in step.reasons for entry in entries if entry.covers(reason) and entry.what}
            if step.role not in forced
            else {}
        )
        findings += [f"{reason}; kept for {entry.owner}: {entry.reason}" for reason, entry in kept.items()]
        left = tuple(reason for reason in step.reasons if reason not in kept)
        if kept and left:
            why = tuple(
                f"{entry.owner}, who keeps a difference (--force {step.role} undoes it)" for entry in kept.values()
            )
            owners = tuple(dict.fromkeys(why))
            steps.append(replace(step, reasons=left, waits_for=(*step.waits_for, *owners), owners=owners))
        elif left:
            steps.append(step)
    return replace(plan, steps=tuple(steps), findings=tuple(findings))


def _entries(variables: Mapping[str, Any]) -> list[_Entry]:
    """Return what is to be kept; the inventory was validated, so odd entries are not ours."""
    found = variables.get("cluster_ignore")
    entries = [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []
    return [_Entry(*(str(entry.get(key) or "") for key in ("what", "owner", "reason"))) for entry in entries]
