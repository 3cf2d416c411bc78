"""The result of an apply as JSON and as text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from provision.batch.durations import elapsed
from provision.model import ApplyReport, Failure, NodeReport, NodeStatus, RoleReport, RoleStatus
from provision.report import layout
from provision.report.grouping import grouped, heads, outline, reason_lines
from provision.report.node_names import as_limit, in_short

if TYPE_CHECKING:
    from provision.report.json_documents.changes import AppliedNode, ApplyResult, RoleFailure

_STATUS = max(map(len, NodeStatus))
_MIN_ROLES_WIDTH = 30


def as_document(report: ApplyReport) -> ApplyResult:
    """Return the document of ``apply --json``; keys are an interface and only ever added."""
    return {
        "ok": report.ok,
        "seconds": report.seconds,
        "nodes": [_node_document(node) for node in report.nodes],
        "remote_tasks": report.tasks,
        "warnings": list(report.warnings),
    }


def _node_document(node: NodeReport) -> AppliedNode:
    error: RoleFailure | None = None
    if node.error:
        error = {
            "role": node.error.role,
            "task": node.error.task,
            "message": node.error.message,
            "output": node.error.output,
            "remedy": node.error.remedy,
            "code": node.error.code or None,
        }
    return {
        "name": node.name,
        "status": node.status,
        "roles": [
            {
                "role": r.role,
                "status": r.status,
                "reasons": list(r.reasons),
                "changes": list(r.changes),
                "remedy": r.remedy,
            }
            for r in node.roles
        ],
        "error": error,
    }


def _failure_of(document: Mapping[str, Any]) -> Failure:
    return Failure(**{**document, "code": document.get("code") or ""})


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
                _failure_of(node["error"]) if node["error"] else None,
            )
            for node in document["nodes"]
        ),
        document["seconds"],
        document["remote_tasks"],
        tuple(document["warnings"]),
    )


def as_text(report: ApplyReport, *, verbose: bool = False) -> str:
    """Return the report as text: the summary, the nodes by their results, then every failure.

    Nodes with the same result share a block; with `verbose` each node has its own.
    """
    good = sum(node.is_converged for node in report.nodes)
    lines = [f"{good} of {len(report.nodes)} nodes are up to date ({elapsed(report.seconds)}).", ""]
    lines += _table(report.nodes, verbose=verbose)
    lines += _blocks([(node.name, _failure(node)) for node in report.nodes if node.error], verbose=verbose)
    lines += _blocks([(node.name, _waiting(node)) for node in report.nodes], verbose=verbose)
    lines += _skipped(report)
    return "\n".join(part for line in [*lines, *_warnings(report)] for part in _wrapped(line))


def _wrapped(line: str) -> list[str]:
    """Return a line, wrapped if it is too long; not one of a program's output, which follows ``|``."""
    if layout.length(line) <= layout.width() or line.startswith("  | "):
        return [line]
    return layout.wrapped(line, " " * (len(line) - len(line.lstrip()) + 2))


def _table(nodes: Sequence[NodeReport], *, verbose: bool) -> list[str]:
    """Return a line for each result, with its nodes and their changed roles."""

    def whole(name: str, status_and_roles: tuple[str, tuple[str, ...]]) -> Hashable:
        return (*status_and_roles, name if verbose else "")

    groups = grouped(((node.name, (node.status.value, _roles(node))) for node in nodes), whole)
    rows = [(in_short(group.names), *group.value) for group in groups]
    width = min(max((len(names) for names, _, _ in rows), default=4), layout.width() - _STATUS - 4)
    lines = [f"{'NODE':<{width}}  {'RESULT':<{_STATUS}}  CHANGED"] if rows else []
    for names, status, roles in rows:
        first, *rest = textwrap.wrap(names, width, break_on_hyphens=False) or [names]
        line = f"{first:<{width}}  {layout.state(status, _STATUS)}  "
        width_left = max(_MIN_ROLES_WIDTH, layout.width() - width - _STATUS - 4)
        lines += [(line + _fitted(roles, width_left)).rstrip(), *rest]
    return lines


def _roles(node: NodeReport) -> tuple[str, ...]:
    return tuple(role.role for role in node.roles if role.status is RoleStatus.CHANGED)


def _fitted(roles: Sequence[str], columns: int) -> str:
    """Return as many of the roles as fit, and how many more there are."""
    for count in range(len(roles), 1, -1):
        left = len(roles) - count
        text = ", ".join(roles[:count]) + (f" and {left} more" if left else "")
        if len(text) <= columns:
            return text
    return f"{roles[0]} and {len(roles) - 1} more" if len(roles) > 1 else "".join(roles)


_Block = tuple[str, Sequence[str]]
"""A heading, which the report prints after the node names, and the lines below it."""


def _blocks(blocks_by_node: Sequence[tuple[str, Sequence[_Block]]], *, verbose: bool) -> list[str]:
    """Return each block once, with the names of its nodes."""
    items = [(name, (head, tuple(body))) for name, blocks in blocks_by_node for head, body in blocks]
    rough = None if verbose else _outline
    lines: list[str] = []
    for group in grouped(items, lambda _, block: block, rough):
        head, body = group.value
        names, own = group.names, body
        if len(names) > 1:  # a remedy with --limit NODE is extended to all nodes of the group
            own = tuple(_for_all(line, names) for line in body)
        lines += ["", f"{in_short(names)}: {head}", *([f"  {group.note}"] if group.varied else []), *own]
    return lines


def _outline(name: str, block: _Block) -> Hashable:
    head, body = block
    return outline(head, name), heads([line for line in body if not line.startswith("  | ")], name)


def _for_all(line: str, names: Sequence[str]) -> str:
    """Return a remedy of the first node extended to all of them."""
    return re.sub(rf"(--(?:limit|disruptive)) {re.escape(names[0])}(?![\w.,-])", rf"\1 {as_limit(names)}", line)


def _waiting(node: NodeReport) -> list[_Block]:
    """Return the roles that wait for running jobs or a configuration owner, with the remedies."""
    waiting = [role for role in node.roles if role.status is RoleStatus.WAITING]
    if not waiting:
        return []
    many = len(waiting) > 1
    lines = [f"  {role.role + ': ' if many else ''}{reason}" for role in waiting for reason in role.reasons]
    lines += [f"  hint: {remedy}" for remedy in dict.fromkeys(role.remedy for role in waiting) if remedy]
    return [(f"{', '.join(role.role for role in waiting)} {'are' if many else 'is'} waiting", lines)]


def _skipped(report: ApplyReport) -> list[str]:
    """Return the skipped nodes, grouped by cause."""
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


def _warnings(report: ApplyReport) -> list[str]:
    """Return the warnings; those that begin with a node's name are grouped."""
    nodes = {node.name for node in report.nodes}
    named = [(name, text) for name, _, text in (one.partition(": ") for one in report.warnings) if name in nodes]
    plain = [warning for warning in report.warnings if warning.partition(": ")[0] not in nodes]
    lines = [f"warning: {line}" for line in (*plain, *reason_lines(named))]
    return ["", *lines] if lines else []


def _failure(node: NodeReport) -> list[_Block]:
    error = node.error
    assert error is not None  # noqa: S101 # nosec B101 # checked by the caller
    where = f"role {error.role}, task '{error.task}'" if error.role else f"task '{error.task}'"
    lines = [f"  {error.message}"]
    lines += [f"  | {line}" for line in error.output.splitlines() if line.strip() and line.strip() != error.message]
    if error.remedy:
        lines.append(f"  hint: {error.remedy}")
    return [(f"{node.status.value} at {where}", lines)]
