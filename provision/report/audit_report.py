"""Audit records as JSON and as text of at most 80 columns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from provision.documents.audit import AuditRecord, AuditTrail
from provision.errors import ProvisionError
from provision.report import layout
from provision.report.grouping import grouped, outline
from provision.report.node_names import in_short

if TYPE_CHECKING:
    from provision.report.json_documents.records import Audit
    from provision.report.json_documents.records import AuditRecord as RecordDocument

_CALLER_WIDTH = 16
_ACTION = 13


def audit_document(nodes: Mapping[str, AuditTrail | ProvisionError]) -> Audit:
    """Return the document of ``history --audit --json``; keys are an interface and only ever added."""
    return {
        "ok": not any(isinstance(trail, ProvisionError) for trail in nodes.values()),
        "nodes": [
            {
                "name": name,
                "error": trail.message if isinstance(trail, ProvisionError) else None,
                "remedy": trail.remedy if isinstance(trail, ProvisionError) else None,
                "error_code": trail.code if isinstance(trail, ProvisionError) else None,
                "invalid": 0 if isinstance(trail, ProvisionError) else trail.invalid,
                "records": [] if isinstance(trail, ProvisionError) else [_record(one) for one in trail.records],
            }
            for name, trail in nodes.items()
        ],
    }


def audit_text(nodes: Mapping[str, AuditTrail | ProvisionError]) -> str:
    """Return a table for each group of nodes with the same records: time, caller, action and object."""
    lines: list[str] = []
    for group in grouped(nodes.items(), lambda _, trail: tuple(_lines(trail)), _outline):
        note = [f"  {group.note}"] if group.varied else []
        lines += [*([""] if lines else []), *layout.wrapped(in_short(group.names), ""), *note, *_lines(group.value)]
    return "\n".join(lines)


def _outline(name: str, trail: AuditTrail | ProvisionError) -> Hashable:
    """Return the grouping key of similar errors; records have no details to omit."""
    return outline(trail.message, name) if isinstance(trail, ProvisionError) else tuple(_lines(trail))


def _lines(trail: AuditTrail | ProvisionError) -> list[str]:
    if isinstance(trail, ProvisionError):
        lines = layout.wrapped(f"  error: {trail.message}", "    ")
        return lines + (layout.wrapped(f"  hint: {trail.remedy}", "    ") if trail.remedy else [])
    lines = _row("when", "who", "action", "what") if trail.records else ["  no recorded actions"]
    for one in trail.records:
        lines += _row(_when(one.time), one.caller + ("" if one.agent else "?"), one.action, _what(one))
    if trail.invalid:
        lines.append(f"  {trail.invalid} invalid records in the journal")
    return lines


def _record(one: AuditRecord) -> RecordDocument:
    return {
        "time": one.time,
        "action": one.action,
        "caller": one.caller,
        "verified": one.agent,
        "address": one.address,
        "result": one.result,
        "job": one.job,
        "id": one.id,
        "owner": one.owner,
        "instance": one.instance,
        "request": one.request,
        "reason": one.reason,
        "command": one.command,
        "secrets": list(one.secrets),
    }


def _what(one: AuditRecord) -> str:
    parts = [
        one.instance or one.job or one.command,
        f"owner {one.owner}" if one.owner and one.owner != one.caller else "",
        f"request {one.request}" if one.request else "",
        one.reason,
        f"secrets {', '.join(one.secrets)}" if one.secrets else "",
        one.result if one.result != "ok" else "",
        f"from {one.address}" if one.address else "",
    ]
    return "; ".join(filter(None, parts))


def _when(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return "?"


def _row(time: str, caller: str, action: str, what: str) -> list[str]:
    names = (
        f"{layout.shortened(caller, _CALLER_WIDTH):<{_CALLER_WIDTH}}  {layout.shortened(action, _ACTION):<{_ACTION}}"
    )
    first = f"{time:<16}  {names}  "
    plain = " ".join(what.split())
    return layout.hanging(first, plain)
