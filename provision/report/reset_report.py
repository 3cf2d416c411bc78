"""Results of ``reset``, or its plan, as JSON and as text."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from provision.model import NodeReset, ResetResult
from provision.report import layout
from provision.report.grouping import Group, grouped, heads, outline
from provision.report.node_names import in_short

if TYPE_CHECKING:
    from provision.report.json_documents.changes import Reset


def as_document(nodes: Sequence[NodeReset], *, dry_run: bool = False) -> Reset:
    """Return the document of ``reset --json``; keys are an interface and only ever added."""
    return {
        "ok": all(node.result.ok for node in nodes),
        "dry_run": dry_run,
        "nodes": [
            {
                "name": node.name,
                "result": node.result,
                "steps": list(node.steps),
                "left": list(node.left),
                "refused": list(node.refused),
                "error": None
                if node.error is None
                else {
                    "task": node.error.task,
                    "message": node.error.message,
                    "output": node.error.output,
                    "remedy": node.error.remedy,
                    "code": node.error.code or None,
                },
            }
            for node in nodes
        ],
    }


def as_plan(nodes: Sequence[NodeReset], *, verbose: bool = False) -> str:
    """Return the planned steps, with equal nodes together unless `verbose`, at most 80 columns wide."""
    lines: list[str] = []
    for group in _similar(nodes, verbose=verbose):
        lines += [*_head(group), *_details(group.value), ""]
    return "\n".join(lines).rstrip()


def as_text(nodes: Sequence[NodeReset], *, verbose: bool = False) -> str:
    """Return the results: a summary, then nodes with the same result together, with remains and errors.

    With `verbose` each node is shown by itself.
    """
    good = sum(node.result in {ResetResult.RESET, ResetResult.NOTHING} for node in nodes)
    lines = [f"{good} of {len(nodes)} nodes have no changes of provision left.", ""]
    for group in _similar(nodes, verbose=verbose):
        lines += [*_head(group), *_details(group.value, steps=False)]
    return "\n".join(lines)


def _similar(nodes: Sequence[NodeReset], *, verbose: bool) -> list[Group[NodeReset]]:
    items = [(node.name, replace(node, name="")) for node in nodes]
    if verbose:
        return grouped(items, lambda name, node: (name, node))
    return grouped(items, lambda _, node: node, _outline)


def _outline(name: str, node: NodeReset) -> Hashable:
    error = outline(node.error.message, name) if node.error else ""
    return node.result, heads(node.steps, name), heads(node.left, name), heads(node.refused, name), error


def _head(group: Group[NodeReset]) -> list[str]:
    note = layout.wrapped(f"  {group.note}", "  ") if group.varied else []
    return [*layout.wrapped(f"{in_short(group.names)}: {_state(group.value)}", ""), *note]


def _state(node: NodeReset) -> str:
    count = f"{len(node.steps)} step{'s' * (len(node.steps) != 1)}"
    return {
        ResetResult.PLANNED: f"{count} to undo",
        ResetResult.NOTHING: "nothing to undo",
        ResetResult.RESET: f"reset, {count}",
        ResetResult.REFUSED: "refused, nothing was changed",
        ResetResult.FAILED: "failed",
        ResetResult.UNREACHABLE: "unreachable",
    }[node.result]


def _details(node: NodeReset, *, steps: bool = True) -> list[str]:
    lines: list[str] = []
    for step in node.steps if steps else ():
        lines += layout.wrapped(f"  {layout.state('-')} {step}", " " * 4)
    for word, sentences in (("remains", node.left), ("blocked by", node.refused)):
        for sentence in sentences:
            lines += layout.wrapped(f"  {word}: {sentence}", " " * 6)
    if node.refused:
        lines += layout.wrapped("  hint: wait until that has ended, or override: --disruptive NODE", " " * 6)
    if node.error:
        lines += layout.wrapped(f"  {node.error.message}", " " * 6)
        shown = [line for line in node.error.output.splitlines() if line.strip()]
        lines += [f"  | {line}" for line in shown if line.strip() != node.error.message]
        lines += layout.wrapped(f"  hint: {node.error.remedy}", " " * 6) if node.error.remedy else []
    return lines
