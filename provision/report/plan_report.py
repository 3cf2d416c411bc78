"""A plan as JSON and as text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from provision.model import (
    NEVER_APPLIED,
    FileDiff,
    NodePlan,
    PackageChange,
    Plan,
    PreflightProblem,
    RoleDiff,
    Step,
    StepClass,
)
from provision.model.reason import Reason
from provision.report import layout
from provision.report.node_names import in_short
from provision.report.reasons import message, names_node, remedy

if TYPE_CHECKING:
    from provision.report.json_documents.changes import (
        FileDiff as FileDocument,
    )
    from provision.report.json_documents.changes import (
        Package,
        PlanNode,
    )
    from provision.report.json_documents.changes import (
        Plan as PlanDocument,
    )
    from provision.report.json_documents.changes import (
        PreflightProblem as ProblemDocument,
    )

_MAX_LINES = 60
"""Lines of one file's diff; the JSON document has all of them."""
_MAX_NAMES = 4
"""Node names per diff."""
_BRIEF = 40
"""Characters of a value."""
_LIST_LINES = 2
"""Lines that a list of packages or settings may take; with `verbose` it has all of them."""
_COMMON = 3
"""Steps of a node: a reason that so many have is printed once, for all of them."""
_MAX_SIMILAR = 3
"""The number of blocks that differ only in details; with more, those of one node represent all."""


def as_document(plan: Plan, diffs: Sequence[RoleDiff] | None = None) -> PlanDocument:
    """Return the document of ``plan --json``; keys are an interface and only ever added.

    It includes `diffs` only if they were requested.
    """
    document: PlanDocument = {
        "converged": plan.converged,
        "nodes": [_node_document(node) for node in plan.nodes],
        "problems": problems_document(plan),
    }
    if diffs is not None:
        _add_diffs(document, diffs)
    return document


def _add_diffs(document: PlanDocument, diffs: Sequence[RoleDiff]) -> None:
    diff_by_step = {(each.node, each.role): each for each in diffs}
    for node in document["nodes"]:
        roles = {step["role"] for step in node["steps"]}
        for step in node["steps"]:
            each = diff_by_step.get((node["name"], step["role"])) or RoleDiff(node["name"], step["role"])
            step["diffs"] = [_file_document(file) for file in each.files]
            step["diffs_note"] = each.note
        # Changes by the role platform, which has no step of its own.
        others = [each for each in diffs if each.node == node["name"] and each.role not in roles]
        node["diffs"] = [{"role": each.role, **_file_document(file)} for each in others for file in each.files]


def _file_document(file: FileDiff) -> FileDocument:
    return {"path": file.path, "diff": file.diff, "note": file.note}


def _node_document(node: NodePlan) -> PlanNode:
    return {
        "name": node.name,
        "reachable": node.reachable,
        "error": node.error,
        "remedy": node.remedy,
        "error_code": node.error_code or None,
        "steps": [
            {
                "role": step.role,
                "class": step.step_class,
                "reasons": [message(reason, node.name) for reason in step.reasons],
                "reason_codes": [reason.as_document() for reason in step.reasons],
                "waits_for": list(step.waits_for),
                "disturbs": list(step.disturbs),
                "packages": [_package_document(package) for package in step.packages],
                "files": list(step.files),
            }
            for step in node.steps
        ],
        "findings": [_finding(finding, node.name) for finding in node.findings],
        "finding_codes": [finding.as_document() for finding in node.findings],
        "dependencies": [_package_document(package) for package in node.dependencies],
        "kept": {name: json.loads(value) for name, value in node.preserved},
        "seconds": None if node.seconds is None else round(node.seconds, 1),
    }


def _package_document(package: PackageChange) -> Package:
    return {"name": package.name, "version": package.version}


def problems_document(plan: Plan) -> list[ProblemDocument]:
    """Return every problem of the preflight with its nodes."""
    return [
        {
            "code": problem.code,
            "role": problem.role,
            "object": problem.object,
            "problem": problem.problem,
            "remedy": problem.remedy,
            "nodes": names,
        }
        for problem, names in _grouped_problems(plan).items()
    ]


def problems_text(plan: Plan) -> str:
    """Return the problems as text; empty if there are none."""
    problems = _grouped_problems(plan)
    if not problems:
        return ""
    lines = [f"Preflight: {len(problems)} problem{'s' * (len(problems) != 1)}; fix them before apply can start."]
    for problem, names in problems.items():
        where = in_short(names)
        lines += ["", *_wrapped(f"{where}: {problem.role}", "  ", "    ")]
        lines += _wrapped(f"{problem.object}: {problem.problem}", "    ", "      ")
        lines += _wrapped(f"hint: {problem.remedy}", "    ", "      ")
    return "\n".join(lines)


def _grouped_problems(plan: Plan) -> dict[PreflightProblem, list[str]]:
    nodes_by_problem: dict[PreflightProblem, list[str]] = {}
    for node in plan.nodes:
        for problem in node.problems:
            nodes_by_problem.setdefault(problem, []).append(node.name)
    return nodes_by_problem


def as_text(plan: Plan, diffs: Sequence[RoleDiff] | None = None, *, verbose: bool = False) -> str:
    """Return the plan as text: nodes with the same steps together, each step with its class and reasons.

    For a role that was never applied, that is the only reason shown, unless the step can disrupt jobs; the document has
    the others too. The `diffs` follow the nodes, equal ones once. With `verbose`, nodes whose details differ have
    separate blocks, and long lists are complete.
    """
    lines: list[str] = []
    for names, node, others in _similar(plan, verbose=verbose):
        lines += [*_names(names, node, others=others, verbose=verbose), *_steps(node, verbose=verbose), ""]
    done = sum(not node.steps and not node.error for node in plan.nodes)
    lines.append(f"{done} of {len(plan.nodes)} nodes are up to date.")
    lines += _last_word(plan)
    if problems := problems_text(plan):
        lines += ["", problems]
    lines += _diffs(diffs or ())
    return "\n".join(lines)


_Block = tuple[list[str], NodePlan, bool]
"""Names of nodes, the plan shown for them, and whether some of them differ in details."""


def _similar(plan: Plan, *, verbose: bool) -> list[_Block]:
    """Return the blocks of nodes with steps, errors or findings; nodes with equal ones share a block."""
    shown_plans = [_shown(node) for node in plan.nodes if node.steps or node.error or node.findings]
    blocks = _together([([node.name], node, False) for node in shown_plans], _whole)
    if verbose:
        return blocks
    outlines = {id(node): _outline(node) for _, node, _ in blocks}
    sizes = Counter(outlines.values())
    return _together(blocks, lambda node: o if sizes[o := outlines[id(node)]] > _MAX_SIMILAR else _whole(node))


def _together(blocks: Sequence[_Block], key: Callable[[NodePlan], Hashable]) -> list[_Block]:
    merged: dict[Hashable, _Block] = {}
    for names, node, others in blocks:
        previous = merged.setdefault(key(node), ([], node, False))
        previous[0].extend(names)
        if others or _whole(previous[1]) != _whole(node):
            merged[key(node)] = (previous[0], previous[1], True)
    return list(merged.values())


def _shown(node: NodePlan) -> NodePlan:
    return replace(node, steps=tuple(map(_shown_step, node.steps)))


def _shown_step(step: Step) -> Step:
    first = next((reason for reason in step.reasons if reason.code == NEVER_APPLIED), None)
    return replace(step, reasons=(first,)) if first and step.step_class is StepClass.SAFE else step


def _finding(finding: Reason, node: str = "") -> str:
    """Return a finding, with the remedy of its check unless that is an apply of this node."""
    text, cause = message(finding, node), finding.params.get("cause")
    advice = "" if not isinstance(cause, Reason) or names_node(cause) else remedy(cause)
    return f"{text.rstrip('.')}. {advice}" if advice else text


def _whole(node: NodePlan) -> Hashable:
    return node.steps, node.error, node.findings, node.preserved if node.steps else (), node.dependencies


def _outline(node: NodePlan) -> Hashable:
    """Return the grouping key of similar nodes, without numbers and text after a colon."""
    steps = tuple(
        (step.role, step.step_class, _codes(step.reasons), _heads(step.waits_for), _heads(step.disturbs))
        for step in node.steps
    )
    return steps, _unnumbered(node.error or ""), _codes(node.findings), tuple(name for name, _ in node.preserved)


def _codes(reasons: Sequence[Reason]) -> tuple[tuple[str, Hashable], ...]:
    """Return the codes, and for findings the checks."""
    return tuple(dict.fromkeys((reason.code, reason.params.get("check")) for reason in reasons))


def _heads(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_unnumbered(text.partition(": ")[0]) for text in texts))


def _unnumbered(text: str) -> str:
    return re.sub("[0-9]+", "#", text)


def _names(names: list[str], node: NodePlan, *, others: bool, verbose: bool) -> list[str]:
    lines = layout.wrapped(in_short(names))
    if others:
        lines += _wrapped(f"(details of {node.name}; those of the other nodes differ: -v)", "  ", "  ")
    if node.error:
        lines += _wrapped(f"{'cannot be planned' if node.reachable else 'unreachable'}: {node.error}", "  ", "    ")
        lines += _wrapped(f"hint: {node.remedy}", "    ", "      ") if node.remedy else []
    for finding in node.findings:
        lines += _wrapped(f"pre-existing: {_finding(finding, in_short(names))}", "  ", "    ")
    if node.preserved and node.steps:
        settings = [f"{name} {_brief(value)}" for name, value in node.preserved]
        lines += _listed("preserved settings: ", settings, "  ", "    ", 0 if verbose else _LIST_LINES)
    return lines


def _brief(value: str) -> str:
    return value if len(value) <= _BRIEF else f"{value[:_BRIEF]}..."


def _steps(node: NodePlan, *, verbose: bool) -> list[str]:
    most = 0 if verbose else _LIST_LINES
    common = _common_reasons(node.steps)
    lines: list[str] = []
    for reason, roles in common.items():
        where = f"all {len(roles)} steps" if len(roles) == len(node.steps) else ", ".join(roles)
        lines += _wrapped(f"{where}: {message(reason, node.name)}", "  ", "    ")
    for step in node.steps:
        lines.append(f"  {layout.state(_sign(step))} {step.role:<20}{layout.state(step.step_class.value)}")
        for reason in step.reasons:
            lines += _wrapped(message(reason, node.name), "      ", "      ") if reason not in common else []
        if step.packages:
            lines += _listed(
                "installs ", list(map(_package, step.packages)), f"      {layout.state('+')} ", "        ", most
            )
        if step.files:
            lines += _listed("writes ", step.files, f"      {layout.state('~')} ", "        ", min(most, 1))
        for job in step.waits_for:
            lines += _wrapped(f"waits for: {job}", f"      {layout.state('!')} ", "        ")
        for job in step.disturbs:
            lines += _wrapped(f"may disturb: {job}", f"      {layout.state('!')} ", "        ")
    if node.dependencies:
        names = [package.name for package in node.dependencies]
        plural = "y" if len(names) == 1 else "ies"
        lines += _listed(f"with {len(names)} dependenc{plural}: ", names, f"  {layout.state('+')} ", "    ", most)
    return lines


def _sign(step: Step) -> str:
    """Return ``+`` for a role that is new on the node, ``~`` for one that changes it."""
    return "+" if any(reason.code == NEVER_APPLIED for reason in step.reasons) else "~"


def _common_reasons(steps: Sequence[Step]) -> dict[Reason, list[str]]:
    """Return the reasons that several steps have, each with the roles."""
    roles: dict[Reason, list[str]] = {}
    for step in steps:
        for reason in dict.fromkeys(step.reasons):
            roles.setdefault(reason, []).append(step.role)
    return {reason: names for reason, names in roles.items() if len(names) >= _COMMON}


def _listed(head: str, items: Sequence[str], first: str, rest: str, most: int) -> list[str]:
    """Return a list on at most `most` lines (0: all), at least one item of it, and how many more there are."""
    for shown in range(len(items), 0, -1):
        more = f" and {len(items) - shown} more (-v)" if shown < len(items) else ""
        lines = _wrapped(head + ", ".join(items[:shown]) + more, first, rest)
        if not most or len(lines) <= most:
            break
    return lines


def _package(package: PackageChange) -> str:
    return f"{package.name} {package.version}" if package.version else package.name


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return layout.wrapped(first + text, rest) if text else []


def _last_word(plan: Plan) -> list[str]:
    """Return a summary of what an apply would do."""
    steps: list[Step] = [step for node in plan.nodes for step in node.steps]
    adoptable = sum(bool(node.preserved) for node in plan.nodes)
    adopt = (
        f"{adoptable} node{'s have' if adoptable != 1 else ' has'} preserved settings; to record them: provision adopt"
    )
    last = layout.wrapped(adopt) if adoptable else []
    if not steps:
        return last
    waiting = sum(bool(set(step.waits_for) - {*step.owners, *step.schedule}) for step in steps)
    scheduled = sum(bool(step.schedule) for step in steps)
    preserved = sum(bool(step.owners) for step in steps)
    going = [step for step in steps if step.step_class is not StepClass.SAFE and not step.waits_for]
    idle, disturbing = sum(not step.disturbs for step in going), sum(bool(step.disturbs) for step in going)
    reboots = sum(step.step_class is StepClass.NEEDS_REBOOT for step in going)
    changing = sum(bool(node.steps) for node in plan.nodes)
    added = sum(_sign(step) == "+" for step in steps)
    where = f"on {changing} node{'s' * (changing != 1)}"
    parts = [f"Plan: {added} step{'s' * (added != 1)} to add, {len(steps) - added} to change {where}"]
    parts += [f"{idle} of them require{'s' * (idle == 1)} an idle node, and no job runs there"] if idle else []
    parts += [f"{reboots} of them reboot{'s' * (reboots == 1)} the node"] if reboots else []
    parts += [f"{disturbing} of them may disturb running jobs (allowed by --disruptive)"] if disturbing else []
    parts += [f"{waiting} wait{'s' * (waiting == 1)} for jobs to end (--disruptive NODE overrides)"] if waiting else []
    parts += [f"{scheduled} wait{'s' * (scheduled == 1)} for a maintenance window or --reboot"] if scheduled else []
    parts += [f"{preserved} would undo a preserved difference (--force ROLE overrides)"] if preserved else []
    return [*layout.wrapped("; ".join(parts) + "."), *last]


def _diffs(diffs: Sequence[RoleDiff]) -> list[str]:
    """Return the diffs of files, each with a line that names its nodes, role and path."""
    same: dict[tuple[str, FileDiff], list[str]] = {}
    for each in diffs:
        files = each.files if each.files or each.note else (FileDiff("", note="no file would change"),)
        for file in (*files, FileDiff("", note=each.note)) if each.note else files:
            names = same.setdefault((each.role, file), [])
            names += [each.node] if each.node not in names else []
    lines: list[str] = []
    for (role, file), names in same.items():
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        where = [", ".join(names[:_MAX_NAMES]) + more, role, *([file.path] if file.path else [])]
        lines += ["", f"--- {': '.join(where)}", *_file_lines(file)]
    return lines


def _signed(line: str) -> str:
    """Return a line of a diff; its sign has the colour of the change."""
    return layout.state(line[:1]) + line[1:] if line[:1] in {"+", "-"} else line


def _file_lines(file: FileDiff) -> list[str]:
    if file.note:
        return _wrapped(f"({file.note})", "", "")
    lines = [_signed(line) for line in file.diff.split("\n")]
    left = len(lines) - _MAX_LINES
    return lines if left <= 0 else [*lines[:_MAX_LINES], f"({left} more lines; --json has all)"]
