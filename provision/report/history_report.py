"""Recorded applies and results of ``unlock``, as JSON and as text of at most 80 columns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from provision.errors import ProvisionError
from provision.model.history import Entry, Holder, Unlocked, local_time
from provision.report import layout
from provision.report.grouping import grouped, outline
from provision.report.node_names import in_short

if TYPE_CHECKING:
    from provision.report.json_documents.records import (
        ApplyHead,
        History,
        LockHolder,
        NodeHistories,
        RecordedApply,
        Unlock,
    )

_USER_WIDTH = 16
_STATUS_WIDTH = 11
_GOOD = {"unchanged", "changed", "waiting", "reset", "nothing"}


def fleet_document(entries: Sequence[Entry], lost: Mapping[str, ProvisionError] | None = None) -> History:
    """Return the document of ``history --json``; keys are an interface and only ever added."""
    return {
        "unreachable": [
            {"name": name, "error": error.message, "remedy": error.remedy, "error_code": error.code}
            for name, error in (lost or {}).items()
        ],
        "entries": [
            {
                **_head(entry),
                "source": "nodes" if entry.file is None else "controller",
                "seconds": entry.seconds,
                "nodes": [
                    {
                        "name": name,
                        "status": result.get("status"),
                        "roles": list(result.get("roles") or ()),
                        "message": result.get("message") or "",
                    }
                    for name, result in entry.nodes.items()
                ],
            }
            for entry in entries
        ],
    }


def nodes_document(nodes: Mapping[str, Sequence[Entry] | ProvisionError]) -> NodeHistories:
    """Return the document of ``history --nodes --json``; keys are an interface and only ever added."""
    return {
        "ok": not any(isinstance(entries, ProvisionError) for entries in nodes.values()),
        "nodes": [
            {
                "name": name,
                "error": entries.message if isinstance(entries, ProvisionError) else None,
                "remedy": entries.remedy if isinstance(entries, ProvisionError) else None,
                "error_code": entries.code if isinstance(entries, ProvisionError) else None,
                "entries": [] if isinstance(entries, ProvisionError) else [_node_entry(entry) for entry in entries],
            }
            for name, entries in nodes.items()
        ],
    }


def fleet_text(entries: Sequence[Entry]) -> str:
    """Return a table of applies: time, user, result, number of nodes, and command."""
    rows = []
    for entry in entries:
        bad = [name for name, result in entry.nodes.items() if result.get("status") and result["status"] not in _GOOD]
        what = entry.command + (f"; not converged: {in_short(bad)}" if bad else "")
        rows.append((*_cells(entry), f"{len(entry.nodes):>5}", what))
    return "\n".join(layout.table(("when", "who", "ended", "nodes", "what"), rows))


def nodes_text(nodes: Mapping[str, Sequence[Entry] | ProvisionError]) -> str:
    """Return a table for each group of nodes with the same records."""
    lines: list[str] = []
    for group in grouped(nodes.items(), lambda _, entries: tuple(_node_lines(entries)), _outline):
        note = [f"  {group.note}"] if group.varied else []
        lines += [
            *([""] if lines else []),
            *layout.wrapped(in_short(group.names), ""),
            *note,
            *_node_lines(group.value),
        ]
    return "\n".join(lines)


def _outline(name: str, entries: Sequence[Entry] | ProvisionError) -> Hashable:
    """Return the grouping key of similar errors; records have no details to omit."""
    return outline(entries.message, name) if isinstance(entries, ProvisionError) else tuple(_node_lines(entries))


def _node_lines(entries: Sequence[Entry] | ProvisionError) -> list[str]:
    if isinstance(entries, ProvisionError):
        lines = layout.wrapped(f"  error: {entries.message}", "    ")
        return lines + (layout.wrapped(f"  hint: {entries.remedy}", "    ") if entries.remedy else [])
    if not entries:
        return ["  no recorded applies"]
    rows = []
    for entry in entries:
        details = [entry.command, f"changed: {', '.join(entry.roles)}" if entry.roles else "", entry.message]
        if entry.status == "died" and entry.notes:
            details.append(f"last step: {entry.notes[-1]}")
        what = "; ".join(filter(None, details))
        rows.append((*_cells(entry), what))
    return layout.table(("when", "who", "ended", "what"), rows)


def unlocked_document(done: Sequence[Unlocked]) -> Unlock:
    """Return the document of ``unlock --json``; keys are an interface and only ever added."""
    return {
        "ok": all(node.ok for node in done),
        "nodes": [
            {
                "name": node.node,
                "result": node.result,
                "reason": node.reason,
                "remedy": node.remedy,
                "holder": _holder(node.holder),
            }
            for node in done
        ],
    }


def unlocked_text(done: Sequence[Unlocked]) -> str:
    """Return a paragraph for each result."""
    lines: list[str] = []
    for group in grouped(((node.node, (node.result, node.reason, node.remedy)) for node in done), lambda _, key: key):
        result, reason, remedy = group.value
        lines += layout.wrapped(f"{in_short(group.names)}: {result}: {reason}", "  ")
        lines += layout.wrapped(f"  hint: {remedy}", "    ") if remedy else []
    return "\n".join(lines)


def _head(entry: Entry) -> ApplyHead:
    return {
        "id": entry.id,
        "started": entry.started,
        "ended": entry.ended,
        "user": entry.user,
        "host": entry.host,
        "command": entry.command,
        "status": entry.status,
    }


def _node_entry(entry: Entry) -> RecordedApply:
    return {**_head(entry), "roles": list(entry.roles), "notes": list(entry.notes), "message": entry.message}


def _holder(holder: Holder | None) -> LockHolder | None:
    if holder is None:
        return None
    return {
        "user": holder.user,
        "host": holder.host,
        "pid": holder.pid,
        "command": holder.command,
        "since": holder.since,
        "gone": holder.gone or None,
    }


def _cells(entry: Entry) -> tuple[str, str, str]:
    """Return when, by whom and with which result."""
    who, status = layout.shortened(entry.who, _USER_WIDTH), layout.shortened(entry.status, _STATUS_WIDTH)
    return local_time(entry.started)[:16], who, layout.state(status)
