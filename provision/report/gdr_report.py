"""Verdicts on GPUDirect RDMA as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from provision.gdr import GdrPath, GdrVerdict, NodeGdr, Unmet
from provision.report import layout
from provision.report.grouping import grouped, outline, reason_lines
from provision.report.node_names import in_short

_PATH = max(len(path) for path in GdrPath)
_LONGEST_NAME = 24


def as_document(verdict: GdrVerdict) -> dict[str, Any]:
    """Return the document of ``gdr --assume --json``; keys are an interface and only ever added."""
    return {
        "path": verdict.path.value,
        "reasons": list(verdict.reasons),
        "unmet": [
            {"path": item.path.value, "precondition": item.precondition, "remedy": item.remedy}
            for item in verdict.unmet
        ],
        "environment": dict(verdict.environment),
    }


def nodes_document(nodes: Sequence[NodeGdr]) -> dict[str, Any]:
    """Return the document of ``gdr --json`` for the nodes of an inventory."""
    return {
        "nodes": [
            {
                "name": node.name,
                **as_document(node.verdict),
                "simulated": node.simulated,
                "error": None if node.error is None else {"message": node.error, "remedy": node.remedy},
            }
            for node in nodes
        ]
    }


def as_text(verdict: GdrVerdict) -> str:
    """Return one verdict as text, at most 80 columns wide."""
    lines = [f"path: {verdict.path.value}"]
    for reason in verdict.reasons:
        lines += layout.wrapped(f"  {reason}", "    ")
    return "\n".join([*lines, *_details([("", verdict)])])


def nodes_text(nodes: Sequence[NodeGdr], *, verbose: bool = False) -> str:
    """Return a table with a row for each result and its main reason, then each unmet precondition with its nodes.

    With `verbose` the table has a row for each node.
    """
    items = [(node.name, _cells(node)) for node in nodes]
    groups = grouped(items, lambda name, cells: (cells, name if verbose else ""), None if verbose else _outline)
    names = [in_short(group.names) for group in groups]
    width = min(max([*map(len, names), 4]), _LONGEST_NAME)
    lines = _row("node", "path", "why", width)
    for name, group in zip(names, groups, strict=True):
        path, explanation = group.value
        lines += _row(name, path, f"{explanation} {group.note}", width)
    for line in reason_lines((node.name, node.remedy) for node in nodes if node.error is not None and node.remedy):
        lines += ["", *layout.wrapped(f"ERROR    {line}", "         ")]
    lines += _details([(node.name, node.verdict) for node in nodes if node.error is None])
    if any(node.simulated for node in nodes):
        where = in_short([node.name for node in nodes if node.simulated])
        lines += ["", *layout.wrapped(f"SIMULATED on {where}: components of the lab, no proof of real hardware.", "  ")]
    return "\n".join(lines)


def _cells(node: NodeGdr) -> tuple[str, str]:
    if node.error is not None:
        return "?", f"SIMULATED: {node.error}" if node.simulated else node.error
    explanation = node.verdict.reasons[0]
    return node.verdict.path.value, f"SIMULATED: {explanation}" if node.simulated else explanation


def _outline(name: str, cells: tuple[str, str]) -> tuple[str, str]:
    simulated = "SIMULATED: " if cells[1].startswith("SIMULATED: ") else ""
    return cells[0], simulated + outline(cells[1].removeprefix(simulated), name)


def _row(name: str, path: str, explanation: str, width: int) -> list[str]:
    shown = name if len(name) <= width else name[: width - 3] + "..."
    first = f"{shown:<{width}}  {path:<{_PATH}}  "
    return layout.hanging(first, explanation)


def _details(verdicts: Sequence[tuple[str, GdrVerdict]]) -> list[str]:
    """Return the open preconditions of the chosen path, the reasons why others are closed, and NCCL's variables."""
    todo: dict[Unmet, list[str]] = {}
    closed: dict[Unmet, list[str]] = {}
    variables: dict[str, list[str]] = {}
    for name, verdict in verdicts:
        for item in verdict.unmet:
            (todo if item in verdict.to_do else closed).setdefault(item, []).append(name)
        text = " ".join(f"{key}={value}" for key, value in verdict.environment.items())
        if text:
            variables.setdefault(text, []).append(name)
    lines = [*_items("TO DO", todo), *_items("CLOSED", closed)]
    for text, names in variables.items():
        lines += ["", *layout.wrapped(f"for NCCL{_on(names)}: {text}", "  ")]
    return lines


def _items(word: str, items: dict[Unmet, list[str]]) -> list[str]:
    lines: list[str] = []
    for item, names in items.items():
        lines += ["", *layout.wrapped(f"{word:<7}  {item.path.value}{_on(names)}", "         ")]
        lines += layout.wrapped(f"         needs {item.precondition}", "         ")
        lines += layout.wrapped(f"         remedy: {item.remedy}", "           ")
    return lines


def _on(names: Iterable[str]) -> str:
    shown = [name for name in names if name]
    return f" on {in_short(shown)}" if shown else ""
