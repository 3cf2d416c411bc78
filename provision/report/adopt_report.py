"""What others set up and the inventory is to keep, as JSON and as text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from provision.model import NodeAdoption
from provision.report import layout
from provision.report.node_names import in_short

__all__ = ["as_document", "as_text"]


def as_document(
    nodes: Sequence[NodeAdoption], files: Mapping[str, Mapping[str, Any]], *, written: bool
) -> dict[str, Any]:
    """Return what ``adopt --json`` prints; keys are an interface and only ever added.

    Args:
        nodes: those that were looked at.
        files: path -> the variables that are, or would be, added to it.
        written: whether they were.
    """
    return {
        "ok": not any(node.error for node in nodes),
        "written": written,
        "nodes": [
            {
                "name": node.name,
                "reachable": node.reachable,
                "error": node.error,
                "remedy": node.remedy,
                "found": list(node.found),
                "record": dict(node.record),
            }
            for node in nodes
        ],
        "files": [{"path": path, "variables": dict(variables)} for path, variables in files.items()],
    }


def as_text(nodes: Sequence[NodeAdoption], texts: Mapping[str, str]) -> str:
    """Return the same for a person: nodes with the same together, then the lines that each file gets (`texts`)."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for node in nodes:
        if node.found or node.error:
            alike.setdefault((node.found, node.error, node.remedy, node.reachable), []).append(node.name)
    lines: list[str] = []
    for (found, error, remedy, reachable), names in alike.items():
        lines += textwrap.wrap(in_short(names), layout.width(), break_on_hyphens=False)
        if error:
            lines += _wrapped(f"{'cannot be looked at' if reachable else 'unreachable'}: {error}")
            lines += _wrapped(f"hint: {remedy}") if remedy else []
        lines += [line for sentence in found for line in _wrapped(f"found: {sentence}")]
        lines.append("")
    for path, text in texts.items():
        lines += [f"to be added to {path}:", *textwrap.indent(text, "  ").splitlines(), ""]
    if not texts:
        lines.append("Nothing to record: what others set up, if anything, is in the inventory.")
    return "\n".join(lines).rstrip()


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, layout.width(), initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
