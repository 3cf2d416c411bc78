"""Results of ``reload`` as JSON and as text."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from provision.model import NodeReload
from provision.model.reason import Reason
from provision.report import layout
from provision.report.grouping import grouped
from provision.report.node_names import as_limit, in_short
from provision.report.reasons import message, remedy

if TYPE_CHECKING:
    from provision.report.json_documents.changes import Reload

_LONGEST_NAME = 24


def as_document(nodes: Sequence[NodeReload]) -> Reload:
    """Return the document of ``reload --json``; keys are an interface and only ever added."""
    return {
        "ok": all(node.result.ok for node in nodes),
        "nodes": [
            {
                "name": node.name,
                "result": node.result,
                "provider": node.provider,
                "module": node.module,
                "cause": node.cause,
                "reason": message(node.reason, node.name),
                "remedy": remedy(node.reason, node.name) or None,
                **node.reason.as_document(),
                "simulated": node.simulated,
            }
            for node in nodes
        ],
    }


def as_text(nodes: Sequence[NodeReload], *, verbose: bool = False) -> str:
    """Return a table with a row for each result, then each remedy with its nodes.

    With `verbose` the table has a row for each node.
    """
    items = [(node.name, replace(node, name="")) for node in nodes]
    groups = grouped(items, lambda name, node: (node, name if verbose else ""), None if verbose else _outline)
    rows = [(in_short(group.names), group.value, group.note) for group in groups]
    cells = []
    for shown, node, note in rows:
        text = f"{'SIMULATED: ' if node.simulated else ''}{message(node.reason, shown)} {note}"
        name = layout.shortened_name(shown, _LONGEST_NAME)
        cells.append((name, layout.state(node.result.value), node.module or "-", text))
    lines = layout.table(("node", "result", "module", "reason"), cells)
    remedies: dict[tuple[str, str, str], tuple[Reason, list[str]]] = {}
    for node in nodes:
        if advice := remedy(node.reason):
            remedies.setdefault((node.result.value, node.cause, advice), (node.reason, []))[1].append(node.name)
    for (result, cause, _), (reason, names) in remedies.items():
        suffix = f": {cause}" if cause else ""
        head = f"{result.upper()}  {in_short(names)}{suffix}"
        advice = remedy(reason, as_limit(names))
        lines += ["", *layout.wrapped(head, "  "), *layout.wrapped(f"  hint: {advice}", "    ")]
    if any(node.simulated for node in nodes):
        where = in_short([node.name for node in nodes if node.simulated])
        lines += ["", *layout.wrapped(f"SIMULATED on {where}: components of the lab, no proof of real hardware.", "  ")]
    return "\n".join(lines)


def _outline(_: str, node: NodeReload) -> Hashable:
    return node.result, node.module, node.cause, node.reason.code
