"""An apply's outcome as JSON and as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.model import ApplyReport, Failure, NodeReport, NodeStatus, RoleReport, RoleStatus
from provision.report.node_names import in_short

__all__ = ["as_document", "as_text", "from_document"]


def as_document(report: ApplyReport) -> dict[str, Any]:
    """Return the document that ``apply --json`` prints; keys are an interface and only ever added."""
    return {
        "ok": report.ok,
        "seconds": report.seconds,
        "nodes": [_node_document(node) for node in report.nodes],
        "remote_tasks": report.tasks,
        "warnings": list(report.warnings),
    }


def _node_document(node: NodeReport) -> dict[str, Any]:
    error = None
    if node.error:
        error = {
            "role": node.error.role,
            "task": node.error.task,
            "message": node.error.message,
            "output": node.error.output,
            "remedy": node.error.remedy,
        }
    return {
        "name": node.name,
        "status": node.status.value,
        "roles": [
            {
                "role": r.role,
                "status": r.status.value,
                "reasons": list(r.reasons),
                "changes": list(r.changes),
                "remedy": r.remedy,
            }
            for r in node.roles
        ],
        "error": error,
    }


def from_document(document: Mapping[str, Any]) -> ApplyReport:
    """Return the report that ``apply --json`` printed."""
    return ApplyReport(
        tuple(
            NodeReport(
                node["name"],
                NodeStatus(node["status"]),
                tuple(
                    RoleReport(
                        r["role"],
                        RoleStatus(r["status"]),
                        tuple(r["reasons"]),
                        tuple(r.get("changes", ())),
                        r.get("remedy", ""),
                    )
                    for r in node["roles"]
                ),
                Failure(**node["error"]) if node["error"] else None,
            )
            for node in document["nodes"]
        ),
        document["seconds"],
        document["remote_tasks"],
        tuple(document["warnings"]),
    )


def as_text(report: ApplyReport) -> str:
    """Return the summary for a person: a line per node, then every failure in full."""
    width = max((len(node.name) for node in report.nodes), default=4)
    lines = [f"{node.name:<{width}}  {node.status.value:<11}  {_roles(node)}".rstrip() for node in report.nodes]
    for node in report.nodes:
        if node.error:
            lines += ["", *_failure(node)]
        lines += _waiting(node)
    lines += _skipped(report)
    good = sum(node.as_wanted for node in report.nodes)
    lines += [f"warning: {text}" for text in report.warnings]
    lines += ["", f"{good} of {len(report.nodes)} nodes are as wanted ({report.seconds:.0f} s)."]
    return "\n".join(lines)


def _roles(node: NodeReport) -> str:
    changed = [role.role for role in node.roles if role.status is RoleStatus.CHANGED]
    return _shorten(", ".join(changed), 80 - 30)


def _waiting(node: NodeReport) -> list[str]:
    """Return what was left undone because of running jobs or an owner's difference, and what to do."""
    waiting = [role for role in node.roles if role.status is RoleStatus.WAITING]
    lines = [""] if waiting else []
    for role in waiting:
        lines += [f"{node.name}: {role.role} is waiting", *(f"  {reason}" for reason in role.reasons)]
    return lines + [f"  hint: {remedy}" for remedy in dict.fromkeys(role.remedy for role in waiting) if remedy]


def _skipped(report: ApplyReport) -> list[str]:
    """Return which nodes were not started, and why; those with the same cause together."""
    same: dict[tuple[str, str], list[str]] = {}
    for node in report.nodes:
        role = next((role for role in node.roles if role.status is RoleStatus.SKIPPED and role.reasons), None)
        if node.status is NodeStatus.SKIPPED:
            same.setdefault((role.reasons[0], role.remedy) if role else ("", ""), []).append(node.name)
    lines: list[str] = []
    for (why, remedy), names in same.items():
        lines += ["", f"{in_short(names)}: skipped", *([f"  {why}"] if why else [])]
        lines += [f"  hint: {remedy}"] if remedy else []
    return lines


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _failure(node: NodeReport) -> list[str]:
    error = node.error
    assert error is not None  # noqa: S101 # nosec B101 # the caller asked
    where = f"role {error.role}, task “{error.task}”" if error.role else f"“{error.task}”"
    lines = [f"{node.name}: {node.status.value} at {where}", f"  {error.message}"]
    lines += [f"  | {line}" for line in error.output.splitlines() if line.strip() and line.strip() != error.message]
    if error.remedy:
        lines.append(f"  hint: {error.remedy}")
    return lines
