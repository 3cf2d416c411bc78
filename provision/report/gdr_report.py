"""Verdicts on GPUDirect RDMA as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from provision.gdr import GdrVerdict, NodeGdr, Unmet
from provision.model.reason import Reason
from provision.report import layout
from provision.report.grouping import grouped, outline, reason_lines
from provision.report.node_names import in_short
from provision.report.reasons import message, remedy

if TYPE_CHECKING:
    from provision.report.json_documents.base import Problem
    from provision.report.json_documents.probes import Gdr
    from provision.report.json_documents.probes import GdrVerdict as GdrVerdictDocument

_LONGEST_NAME = 24


def as_document(verdict: GdrVerdict) -> GdrVerdictDocument:
    """Return the document of ``gdr --assume --json``; keys are an interface and only ever added."""
    return {
        "path": verdict.path,
        "reasons": [message(reason) for reason in verdict.reasons],
        "reason_codes": [reason.as_document() for reason in verdict.reasons],
        "unmet": [
            {
                "path": item.path,
                "precondition": message(item.precondition),
                "remedy": remedy(item.precondition),
                **item.precondition.as_document(),
            }
            for item in verdict.unmet
        ],
        "environment": dict(verdict.environment),
    }


def nodes_document(nodes: Sequence[NodeGdr]) -> Gdr:
    """Return the document of ``gdr --json`` for the nodes of an inventory."""
    return {
        "nodes": [
            {
                "name": node.name,
                **as_document(node.verdict),
                "simulated": node.simulated,
                "error": None if node.error is None else _error(node.error),
            }
            for node in nodes
        ]
    }


def _error(error: Reason) -> Problem:
    return {"message": message(error), "remedy": remedy(error) or None, **error.as_document()}


def as_text(verdict: GdrVerdict) -> str:
    """Return one verdict as text, at most 80 columns wide."""
    lines = [f"path: {verdict.path.value}"]
    for reason in verdict.reasons:
        lines += layout.wrapped(f"  {message(reason)}", "    ")
    return "\n".join([*lines, *_details([("", verdict)])])


def nodes_text(nodes: Sequence[NodeGdr], *, verbose: bool = False) -> str:
    """Return a table with a row for each result and its main reason, then each unmet precondition with its nodes.

    With `verbose` the table has a row for each node.
    """
    items = [(node.name, _cells(node)) for node in nodes]
    groups = grouped(items, lambda name, cells: (cells, name if verbose else ""), None if verbose else _outline)
    names = [in_short(group.names) for group in groups]
    rows = []
    for name, group in zip(names, groups, strict=True):
        path, simulated, explanation = group.value
        shown = layout.shortened_name(name, _LONGEST_NAME)
        rows.append((shown, path, f"{'SIMULATED: ' * simulated}{explanation} {group.note}"))
    lines = layout.table(("node", "path", "why"), rows)
    remedies = [(node.name, remedy(node.error)) for node in nodes if node.error is not None]
    for line in reason_lines((name, text) for name, text in remedies if text):
        lines += ["", *layout.wrapped(f"ERROR    {line}", "         ")]
    lines += _details([(node.name, node.verdict) for node in nodes if node.error is None])
    if any(node.simulated for node in nodes):
        where = in_short([node.name for node in nodes if node.simulated])
        lines += ["", *layout.wrapped(f"SIMULATED on {where}: components of the lab, no proof of real hardware.", "  ")]
    return "\n".join(lines)


def _cells(node: NodeGdr) -> tuple[str, bool, str]:
    """Return the path, whether it is SIMULATED, and the main reason."""
    if node.error is not None:
        return "?", node.simulated, message(node.error)
    return node.verdict.path.value, node.simulated, message(node.verdict.reasons[0])


def _outline(name: str, cells: tuple[str, bool, str]) -> tuple[str, bool, str]:
    path, simulated, explanation = cells
    return path, simulated, outline(explanation, name)


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
        lines += layout.wrapped(f"         needs {message(item.precondition)}", "         ")
        lines += layout.wrapped(f"         hint: {remedy(item.precondition)}", "           ")
    return lines


def _on(names: Iterable[str]) -> str:
    shown = [name for name in names if name]
    return f" on {in_short(shown)}" if shown else ""
