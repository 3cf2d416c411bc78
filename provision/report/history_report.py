"""Applies that there were, and what came of unlocking nodes: as JSON and as text of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from provision.errors import ProvisionError
from provision.model.history import Entry, Holder, Unlocked, local_time
from provision.report import layout
from provision.report.grouping import grouped, outline
from provision.report.node_names import in_short

__all__ = ["fleet_document", "fleet_text", "nodes_document", "nodes_text", "unlocked_document", "unlocked_text"]

_WHO = 16
_HOW = 11
_GOOD = {"unchanged", "changed"}


def fleet_document(entries: Sequence[Entry], lost: Mapping[str, ProvisionError] | None = None) -> dict[str, Any]:
    """Return what ``history --json`` prints; keys are an interface and only ever added."""
    return {
        "unreachable": [
            {"name": name, "error": error.message, "remedy": error.remedy} for name, error in (lost or {}).items()
        ],
        "entries": [
            {
                **_head(entry),
                "source": "nodes" if entry.file is None else "controller",
                "seconds": entry.seconds,
                "nodes": [
                    {
                        "name": name,
                        "status": told.get("status"),
                        "roles": list(told.get("roles") or ()),
                        "message": told.get("message") or "",
                    }
                    for name, told in entry.nodes.items()
                ],
            }
            for entry in entries
        ],
    }


def nodes_document(nodes: Mapping[str, Sequence[Entry] | ProvisionError]) -> dict[str, Any]:
    """Return what ``history --nodes --json`` prints; keys are an interface and only ever added."""
    return {
        "ok": not any(isinstance(found, ProvisionError) for found in nodes.values()),
        "nodes": [
            {
                "name": name,
                "error": found.message if isinstance(found, ProvisionError) else None,
                "remedy": found.remedy if isinstance(found, ProvisionError) else None,
                "entries": [] if isinstance(found, ProvisionError) else [_node_entry(entry) for entry in found],
            }
            for name, found in nodes.items()
        ],
    }


def fleet_text(entries: Sequence[Entry]) -> str:
    """Return a table of applies: when, who, how it ended, on how many nodes, and what for."""
    lines = _row("when", "who", "ended", "nodes", "what")
    for entry in entries:
        bad = [name for name, told in entry.nodes.items() if told.get("status") and told["status"] not in _GOOD]
        what = entry.command + (f"; not as wanted: {in_short(bad)}" if bad else "")
        lines += _row(local_time(entry.started)[:16], entry.who, entry.status, str(len(entry.nodes)), what)
    return "\n".join(lines)


def nodes_text(nodes: Mapping[str, Sequence[Entry] | ProvisionError]) -> str:
    """Return what the nodes have recorded, one table for nodes with the same records."""
    lines: list[str] = []
    for group in grouped(nodes.items(), lambda _, found: tuple(_node_lines(found)), _outline):
        note = [f"  {group.note}"] if group.varied else []
        lines += [*([""] if lines else []), *_wrap(in_short(group.names), ""), *note, *_node_lines(group.value)]
    return "\n".join(lines)


def _outline(name: str, found: Sequence[Entry] | ProvisionError) -> Hashable:
    """Return what nodes have in common that could not be asked; records have no details to leave out."""
    return outline(found.message, name) if isinstance(found, ProvisionError) else tuple(_node_lines(found))


def _node_lines(found: Sequence[Entry] | ProvisionError) -> list[str]:
    if isinstance(found, ProvisionError):
        lines = _wrap(f"  could not be asked: {found.message}", "    ")
        return lines + (_wrap(f"  hint: {found.remedy}", "    ") if found.remedy else [])
    if not found:
        return ["  no apply is recorded here"]
    lines = _row("when", "who", "ended", "", "what")
    for entry in found:
        told = [entry.command, f"changed: {', '.join(entry.roles)}" if entry.roles else "", entry.message]
        if entry.status == "died" and entry.notes:
            told.append(f"last step: {entry.notes[-1]}")
        what = "; ".join(filter(None, told))
        lines += _row(local_time(entry.started)[:16], entry.who, entry.status, "", what)
    return lines


def unlocked_document(done: Sequence[Unlocked]) -> dict[str, Any]:
    """Return what ``unlock --json`` prints; keys are an interface and only ever added."""
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
    for group in grouped(((node.node, (node.result, node.reason, node.remedy)) for node in done), lambda _, told: told):
        result, reason, remedy = group.value
        lines += _wrap(f"{in_short(group.names)}: {result}: {reason}", "  ")
        lines += _wrap(f"  hint: {remedy}", "    ") if remedy else []
    return "\n".join(lines)


def _head(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "started": entry.started,
        "ended": entry.ended,
        "user": entry.user,
        "host": entry.host,
        "command": entry.command,
        "status": entry.status,
    }


def _node_entry(entry: Entry) -> dict[str, Any]:
    return {**_head(entry), "roles": list(entry.roles), "notes": list(entry.notes), "message": entry.message}


def _holder(holder: Holder | None) -> dict[str, Any] | None:
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


def _row(when: str, who: str, how: str, nodes: str, what: str) -> list[str]:
    count = f"{nodes:>5}  " if nodes else ""
    first = f"{when:<16}  {_cut(who, _WHO):<{_WHO}}  {layout.state(_cut(how, _HOW), _HOW)}  {count}"
    return textwrap.wrap(
        what, layout.width(), initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False
    ) or [first.rstrip()]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, layout.width(), subsequent_indent=indent, break_on_hyphens=False) or [""]
