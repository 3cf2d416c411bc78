"""A plan as JSON and as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from provision.model import FileDiff, NodePlan, Plan, RoleDiff, Step, StepClass

__all__ = ["as_document", "as_text"]

_WIDTH = 80
_MOST_LINES = 60
"""Of one file's diff; the JSON document has all of them."""
_MOST_NAMES = 4
"""Of nodes with the same diff."""


def as_document(plan: Plan, diffs: Sequence[RoleDiff] | None = None) -> dict[str, Any]:
    """Return the document that ``plan --json`` prints; keys are an interface and only ever added.

    Those of `diffs` are there only when it was asked for them.
    """
    document = {"converged": plan.converged, "nodes": [_node_document(node) for node in plan.nodes]}
    if diffs is not None:
        _add_diffs(document, diffs)
    return document


def _add_diffs(document: dict[str, Any], diffs: Sequence[RoleDiff]) -> None:
    found = {(each.node, each.role): each for each in diffs}
    for node in document["nodes"]:
        roles = {step["role"] for step in node["steps"]}
        for step in node["steps"]:
            each = found.get((node["name"], step["role"])) or RoleDiff(node["name"], step["role"])
            step["diffs"] = [_file_document(file) for file in each.files]
            step["diffs_note"] = each.note
        # What platform does for the steps, where it is none itself.
        others = [each for each in diffs if each.node == node["name"] and each.role not in roles]
        node["diffs"] = [{"role": each.role, **_file_document(file)} for each in others for file in each.files]


def _file_document(file: FileDiff) -> dict[str, str]:
    return {"path": file.path, "diff": file.diff, "note": file.note}


def _node_document(node: NodePlan) -> dict[str, Any]:
    return {
        "name": node.name,
        "reachable": node.reachable,
        "error": node.error,
        "remedy": node.remedy,
        "steps": [
            {
                "role": step.role,
                "class": step.step_class.value,
                "reasons": list(step.reasons),
                "waits_for": list(step.waits_for),
            }
            for step in node.steps
        ],
        "findings": list(node.findings),
        "seconds": None if node.seconds is None else round(node.seconds, 1),
    }


def as_text(plan: Plan, diffs: Sequence[RoleDiff] | None = None) -> str:
    """Return the plan for a person: nodes with the same steps together, each step with its class and its reasons.

    After it stand the `diffs`, those that are the same on several nodes once.
    """
    lines: list[str] = []
    for names, node in _alike(plan):
        lines += [*_names(names, node), *_steps(node), ""]
    done = sum(not node.steps and not node.error for node in plan.nodes)
    lines.append(f"{done} of {len(plan.nodes)} nodes are as wanted.")
    lines += _last_word(plan)
    lines += _diffs(diffs or ())
    return "\n".join(lines)


def _alike(plan: Plan) -> list[tuple[list[str], NodePlan]]:
    """Return the nodes that there is something to tell of, those with the same to tell together."""
    found: dict[tuple[Any, ...], tuple[list[str], NodePlan]] = {}
    for node in plan.nodes:
        if node.steps or node.error or node.findings:
            key = (node.steps, node.error, node.findings)
            found.setdefault(key, ([], node))[0].append(node.name)
    return list(found.values())


def _names(names: list[str], node: NodePlan) -> list[str]:
    lines = textwrap.wrap(", ".join(names), _WIDTH)
    if node.error:
        lines += _wrapped(f"{'cannot be planned' if node.reachable else 'unreachable'}: {node.error}", "  ", "    ")
        lines += _wrapped(f"hint: {node.remedy}", "    ", "      ") if node.remedy else []
    for finding in node.findings:
        lines += _wrapped(f"found: {finding}", "  ", "    ")
    return lines


def _steps(node: NodePlan) -> list[str]:
    lines: list[str] = []
    for step in node.steps:
        lines.append(f"  {step.role:<20}{step.step_class.value}")
        for reason in step.reasons:
            lines += _wrapped(reason, "    - ", "      ")
        for job in step.waits_for:
            lines += _wrapped(f"waits for: {job}", "    ! ", "      ")
    return lines


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=True
    )


def _last_word(plan: Plan) -> list[str]:
    """Say what an apply would do, in one line."""
    steps: list[Step] = [step for node in plan.nodes for step in node.steps]
    if not steps:
        return []
    waiting = sum(bool(step.waits_for) for step in steps)
    idle = sum(step.step_class is not StepClass.SAFE and not step.waits_for for step in steps)
    parts = [f"{len(steps)} step{'s' * (len(steps) != 1)} to run"]
    parts += [f"{idle} of them can hurt jobs, and none runs there"] if idle else []
    parts += [f"{waiting} wait{'s' * (waiting == 1)} for jobs to end (--disruptive NODE overrides)"] if waiting else []
    return [*textwrap.wrap("; ".join(parts) + ".", _WIDTH)]


def _diffs(diffs: Sequence[RoleDiff]) -> list[str]:
    """Return the differences of files, each with a line that says where."""
    same: dict[tuple[str, FileDiff], list[str]] = {}
    for each in diffs:
        files = each.files if each.files or each.note else (FileDiff("", note="nothing to show: no file would change"),)
        for file in (*files, FileDiff("", note=each.note)) if each.note else files:
            names = same.setdefault((each.role, file), [])
            names += [each.node] if each.node not in names else []
    lines: list[str] = []
    for (role, file), names in same.items():
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        where = [", ".join(names[:_MOST_NAMES]) + more, role, *([file.path] if file.path else [])]
        lines += ["", f"--- {': '.join(where)}", *_file_lines(file)]
    return lines


def _file_lines(file: FileDiff) -> list[str]:
    if file.note:
        return _wrapped(f"({file.note})", "", "")
    lines = file.diff.split("\n")
    left = len(lines) - _MOST_LINES
    return lines if left <= 0 else [*lines[:_MOST_LINES], f"({left} more lines; --json has them all)"]
