"""Settings that ``adopt`` records in the inventory, as JSON and as text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from provision.model import NodeAdoption
from provision.report import layout
from provision.report.node_names import in_short

if TYPE_CHECKING:
    from provision.report.json_documents.changes import Adopt


def as_document(nodes: Sequence[NodeAdoption], files: Mapping[str, Mapping[str, Any]], *, written: bool) -> Adopt:
    """Return the document of ``adopt --json``; keys are an interface and only ever added.

    Args:
        nodes: the probed nodes.
        files: path -> the variables that are, or would be, added to it.
        written: whether they were added.
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
                "error_code": node.error_code or None,
                "found": list(node.settings),
                "record": dict(node.record),
            }
            for node in nodes
        ],
        "files": [{"path": path, "variables": dict(variables)} for path, variables in files.items()],
    }


def as_text(nodes: Sequence[NodeAdoption], texts: Mapping[str, str]) -> str:
    """Return the report as text: nodes with equal results together, then the lines to add to each file (`texts`)."""
    names_by_result: dict[tuple[Any, ...], list[str]] = {}
    for node in nodes:
        if node.settings or node.error:
            names_by_result.setdefault((node.settings, node.error, node.remedy, node.reachable), []).append(node.name)
    lines: list[str] = []
    for (settings, error, remedy, reachable), names in names_by_result.items():
        lines += layout.wrapped(in_short(names))
        if error:
            lines += _wrapped(f"{'probe failed' if reachable else 'unreachable'}: {error}")
            lines += _wrapped(f"hint: {remedy}") if remedy else []
        lines += [line for sentence in settings for line in _wrapped(f"pre-existing: {sentence}")]
        lines.append("")
    for path, text in texts.items():
        lines += [f"add to {path}:", *textwrap.indent(text, "  ").splitlines(), ""]
    if not texts:
        lines.append("Nothing to record: the inventory has all pre-existing configuration.")
    return "\n".join(lines).rstrip()


def _wrapped(text: str) -> list[str]:
    return layout.wrapped(f"  {text}", "    ")
