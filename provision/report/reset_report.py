"""What a reset would do, or came to, as JSON and as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from provision.model import NodeReset, ResetResult

__all__ = ["as_document", "as_plan", "as_text"]

_WIDTH = 80
_FEW = 6


def as_document(nodes: Sequence[NodeReset], *, dry_run: bool = False) -> dict[str, Any]:
    """Return what ``reset --json`` prints; keys are an interface and only ever added."""
    return {
        "ok": all(node.result.ok for node in nodes),
        "dry_run": dry_run,
        "nodes": [
            {
                "name": node.name,
                "result": node.result.value,
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
                },
            }
            for node in nodes
        ],
    }


def as_plan(nodes: Sequence[NodeReset]) -> str:
    """Return what would be done, nodes with the same together, at most 80 columns wide."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for node in nodes:
        alike.setdefault((node.result, node.steps, node.left, node.refused, node.error), []).append(node.name)
    lines: list[str] = []
    for (result, steps, left, refused, error), names in alike.items():
        node = NodeReset("", result, steps, left, refused, error)
        lines += [*_wrap(f"{_names(names)}: {_state(node)}", ""), *_details(node), ""]
    return "\n".join(lines).rstrip()


def as_text(nodes: Sequence[NodeReset]) -> str:
    """Return how it went: a line per node, with what stays and what went wrong below it."""
    lines: list[str] = []
    for node in nodes:
        lines += [*_wrap(f"{node.name}: {_state(node)}", ""), *_details(node, steps=False)]
    good = sum(node.result in {ResetResult.RESET, ResetResult.NOTHING} for node in nodes)
    return "\n".join([*lines, "", f"{good} of {len(nodes)} nodes are as they were before."])


def _state(node: NodeReset) -> str:
    count = f"{len(node.steps)} step{'s' * (len(node.steps) != 1)}"
    return {
        ResetResult.PLANNED: f"{count} to undo what was done",
        ResetResult.NOTHING: "nothing to undo",
        ResetResult.RESET: f"reset, {count}",
        ResetResult.REFUSED: "refused, nothing is changed",
        ResetResult.FAILED: "failed",
        ResetResult.UNREACHABLE: "unreachable",
    }[node.result]


def _details(node: NodeReset, *, steps: bool = True) -> list[str]:
    lines: list[str] = []
    for number, step in enumerate(node.steps if steps else (), 1):
        lines += _wrap(f"{number:>4}  {step}", " " * 6)
    for word, sentences in (("stays", node.left), ("in the way", node.refused)):
        for sentence in sentences:
            lines += _wrap(f"  {word}: {sentence}", " " * 6)
    if node.refused:
        lines += _wrap("  hint: wait until that has ended, or do it all the same: --disruptive NODE", " " * 6)
    if node.error:
        lines += _wrap(f"  {node.error.message}", " " * 6)
        shown = [line for line in node.error.output.splitlines() if line.strip()]
        lines += [f"  | {line}" for line in shown if line.strip() != node.error.message]
        lines += _wrap(f"  hint: {node.error.remedy}", " " * 6) if node.error.remedy else []
    return lines


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]
