"""What came of a reload, as JSON and as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from provision.model import NodeReload, ReloadResult

__all__ = ["as_document", "as_text"]

_WIDTH = 80
_LONGEST_NAME = 24
_RESULT = max(len(result) for result in ReloadResult)
_MODULE = len("nvidia_peermem")


def as_document(nodes: Sequence[NodeReload]) -> dict[str, Any]:
    """Return what ``reload --json`` prints; keys are an interface and only ever added."""
    return {
        "ok": all(node.result.ok for node in nodes),
        "nodes": [
            {
                "name": node.name,
                "result": node.result.value,
                "provider": node.provider,
                "module": node.module,
                "cause": node.cause,
                "reason": node.reason,
                "remedy": node.remedy,
                "simulated": node.simulated,
            }
            for node in nodes
        ],
    }


def as_text(nodes: Sequence[NodeReload]) -> str:
    """Return a table of all nodes, at most 80 columns wide, then each remedy with the nodes that it is for."""
    width = min(max([len(node.name) for node in nodes] + [4]), _LONGEST_NAME)
    lines = _row("node", "result", "module", "reason", width)
    for node in nodes:
        mark = "SIMULATED: " if node.simulated else ""
        lines += _row(node.name, node.result.value, node.module or "-", f"{mark}{node.reason}", width)
    remedies: dict[tuple[str, str, str], list[str]] = {}
    for node in nodes:
        if node.remedy:
            remedies.setdefault((node.result.value, node.cause, node.remedy), []).append(node.name)
    for (result, cause, remedy), names in remedies.items():
        why = f": {cause}" if cause else ""
        lines += ["", *_wrap(f"{result.upper()}  {_names(names)}{why}", "  "), *_wrap(f"  remedy: {remedy}", "    ")]
    if any(node.simulated for node in nodes):
        where = _names(node.name for node in nodes if node.simulated)
        lines += ["", *_wrap(f"SIMULATED on {where}: stand-ins of the lab, no proof of real hardware.", "  ")]
    return "\n".join(lines)


def _row(name: str, result: str, module: str, reason: str, width: int) -> list[str]:
    shown = name if len(name) <= width else name[: width - 3] + "..."
    first = f"{shown:<{width}}  {result:<{_RESULT}}  {module:<{_MODULE}}  "
    return textwrap.wrap(
        reason, _WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False
    ) or [first.rstrip()]


def _names(names: Iterable[str]) -> str:
    found, few = list(names), 6
    return ", ".join(found[:few]) + (f" and {len(found) - few} more" if len(found) > few else "")


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]
