"""A verification as JSON and as text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision.checks.minimums import NONE, Held
from provision.model import CheckResult, CheckStatus, Collective, NodeChecks, PairBandwidth, Verification
from provision.report import layout
from provision.report.grouping import Group, grouped, outline
from provision.report.job_words import columns
from provision.report.node_names import as_limit, in_short

__all__ = ["as_document", "as_text", "profile_document", "profile_text"]

_CLUSTER = "(cluster)"
_PAIRS_SHOWN = 8
_HEADS = ("COMPONENT", "REQUIRED", "FOUND", "VERDICT")
_FOUND = 22
_COUNTS = 48
"""Columns of the counts of a node."""
_SELF = "--limit \0"
_SEEN_FIRST = (CheckStatus.FAIL, CheckStatus.WARN, CheckStatus.SKIP, CheckStatus.PASS)


def as_document(verification: Verification) -> dict[str, Any]:
    """Return the document that ``verify --json`` prints; keys are an interface and only ever added."""
    document: dict[str, Any] = {
        "ok": verification.ok,
        "nodes": [
            {"name": node.name, "checks": [_check_document(check) for check in node.checks]}
            for node in verification.nodes
        ],
        "cluster": [_check_document(check) for check in verification.cluster],
    }
    if verification.bandwidth is not None:
        document["pairs"] = [_pair_document(pair) for pair in verification.bandwidth.pairs]
    if verification.collective is not None:
        document["collective"] = _collective_document(verification.collective)
    return document


def _collective_document(found: Collective) -> dict[str, Any]:
    """Bandwidths are GB/s."""
    return {
        "program": found.program,
        "memory": found.memory,
        "nodes": list(found.nodes),
        "ranks": found.ranks,
        "size_bytes": found.size_bytes,
        "bus_bandwidth_gb_s": found.bus_bandwidth,
        "predicted_gb_s": found.predicted,
        "fraction": None if found.fraction is None else round(found.fraction, 4),
        "minimum_fraction": found.minimum,
        "wrong": found.wrong,
        "simulated": found.simulated,
        "left_out": [{"node": name, "reason": reason} for name, reason in found.left_out.items()],
        "reason": found.reason or None,
    }


def _pair_document(pair: PairBandwidth) -> dict[str, Any]:
    """Numbers are Gbit/s; `device` and `port` are those of `a`, which sends."""
    return {
        "a": pair.a.node,
        "b": pair.b.node,
        "gbit_s": None if pair.gbit_s is None else round(pair.gbit_s, 3),
        "device": pair.a.device,
        "memory": pair.memory,
        "port": pair.a.number,
        "device_b": pair.b.device,
        "port_b": pair.b.number,
        "line_rate_gbit_s": pair.line_rate_gbit_s,
        "reason": pair.reason or None,
    }


def _check_document(check: CheckResult) -> dict[str, Any]:
    return {
        "id": check.id,
        "status": check.status.value,
        "simulated": check.simulated,
        "reason": check.reason,
        "remedy": check.remedy,
    }


def as_text(
    verification: Verification, *, verbose: bool = False, simulated: Sequence[tuple[str, Sequence[str]]] = ()
) -> str:
    """Return the report for a person: the result, counts, then each warning and failure with the nodes that it is on.

    Args:
        verification: the results.
        verbose: show every check, a line of counts for each node, and each node's own details.
        simulated: for each node the stand-ins that it carries.
    """
    nodes = [*verification.nodes]
    if verification.cluster:
        nodes.append(NodeChecks(_CLUSTER, verification.cluster))
    lines = [*_result(verification), "", *_counts(nodes, verbose=verbose)]
    shown = set(_SEEN_FIRST) if verbose else {CheckStatus.FAIL, CheckStatus.WARN}
    for status in _SEEN_FIRST:
        if status in shown:
            lines += _details(nodes, status, verbose=verbose)
    lines += _pairs(verification.bandwidth.pairs) if verification.bandwidth else []
    lines += _collective(verification.collective) if verification.collective else []
    return "\n".join([*lines, *_stand_ins(simulated)])


def profile_document(name: str, held: Mapping[str, Sequence[Held]]) -> dict[str, Any]:
    """Return what ``verify --profile NAME --json`` adds under ``profile``."""
    nodes = [
        {
            "name": node,
            "components": [
                {
                    "component": item.component,
                    "found": None if item.found == NONE else item.found,
                    "required": item.required,
                    "status": item.verdict.status.value,
                    "simulated": item.verdict.simulated,
                }
                for item in items
            ],
        }
        for node, items in held.items()
    ]
    return {"name": name, "nodes": nodes}


def profile_text(name: str, held: Mapping[str, Sequence[Held]]) -> str:
    """Return what the guide asks for and nodes have: a table for each group of nodes that have the same."""
    blocks = []
    for group in grouped(held.items(), lambda _, items: tuple(items)):
        rows = [(item.component, item.required, _cut(item.found, _FOUND), _mark(item)) for item in group.value]
        blocks.append("\n".join([f"profile {name} on {in_short(group.names)}:", *columns([_HEADS, *rows], "  ")]))
    return "\n\n".join(blocks)


def _mark(item: Held) -> str:
    return layout.state(item.verdict.status.value) + (" SIMULATED" if item.verdict.simulated else "")


def _counts(nodes: Sequence[NodeChecks], *, verbose: bool) -> list[str]:
    """Return a line of counts for each group of nodes with the same counts; with `verbose` for each node."""

    def whole(name: str, line: str) -> tuple[str, str]:
        return line, name if verbose or name == _CLUSTER else ""

    rows = []
    for node in nodes:
        statuses = [check.status for check in node.checks]
        counts = "  ".join(f"{statuses.count(status):>4}" for status in CheckStatus)
        note = "  SIMULATED parts" if any(check.simulated for check in node.checks) else ""
        rows.append((node.name, f"{layout.state(_worst(statuses), 6)}  {counts}{note}"))
    groups = [(in_short(group.names), group.value) for group in grouped(rows, whole)]
    width = min(max([len(names) for names, _ in groups] + [4]), layout.width() - _COUNTS)
    lines = [f"{'node':<{width}}  {'result':<6}  {'pass':>4}  {'warn':>4}  {'fail':>4}  {'skip':>4}"]
    return lines + [f"{_cut(names, width):<{width}}  {line}" for names, line in groups]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _worst(statuses: Iterable[CheckStatus]) -> str:
    found = set(statuses)
    return next((status.value for status in (CheckStatus.FAIL, CheckStatus.WARN) if status in found), "pass")


def _details(nodes: Sequence[NodeChecks], status: CheckStatus, *, verbose: bool) -> list[str]:
    """Return a block for each result; nodes with the same result share it, and a remedy that names them all."""
    found = [
        (node.name, _of_any_node(check, node.name)) for node in nodes for check in node.checks if check.status is status
    ]
    groups: list[Group[CheckResult]] = grouped(found, lambda _, check: check, None if verbose else _outline)
    lines: list[str] = []
    for group in groups:
        check = group.value
        mark = "  SIMULATED" if check.simulated else ""
        where = "of the cluster" if group.names == [_CLUSTER] else f"on {in_short(group.names)}"
        name = layout.state(status.value.upper(), 4)
        lines += ["", *_wrap(f"{name}  {check.id}{mark}  {where}", "      ")]
        lines += _wrap(f"      {check.reason}", "      ")
        lines += _wrap(f"      {group.note}", "      ") if group.varied else []
        if check.remedy:
            remedy = _short_limits(check.remedy.replace(_SELF, f"--limit {as_limit(group.names)}"))
            lines += _wrap(f"      remedy: {remedy}", "        ")
    return lines


def _short_limits(remedy: str) -> str:
    """Return the remedy with ranges instead of lists of nodes."""
    lists = re.compile(r"--limit ([\w.-]+(?:,[\w.-]+){3,})")
    return lists.sub(lambda found: f"--limit {as_limit(found[1].split(','))}", remedy)


def _outline(name: str, check: CheckResult) -> Hashable:
    reason, remedy = outline(check.reason, name), outline(check.remedy or "", name)
    return check.id, check.simulated, reason, remedy


def _pairs(pairs: Sequence[PairBandwidth]) -> list[str]:
    """List the slowest measurements, failed ones first."""
    if not pairs:
        return []

    def speed(pair: PairBandwidth) -> float:
        return -1.0 if pair.gbit_s is None else pair.gbit_s / (pair.line_rate_gbit_s or 1.0)

    lines = ["", "bandwidth between containers in Gb/s, the slowest first:"]
    for pair in sorted(pairs, key=speed)[:_PAIRS_SHOWN]:
        rate = "" if pair.line_rate_gbit_s is None else f" of {pair.line_rate_gbit_s:g}"
        value = "failed" if pair.gbit_s is None else f"{pair.gbit_s:.3g}{rate} ({pair.memory} memory)"
        lines += _wrap(f"  {pair.a} -> {pair.b}  {value}", "    ")
    if len(pairs) > _PAIRS_SHOWN:
        lines.append(f"  and {len(pairs) - _PAIRS_SHOWN} more (all of them: --json)")
    return lines


def _collective(found: Collective) -> list[str]:
    """Return the measured all-reduce; why there is none is told by its check."""
    if found.bus_bandwidth is None:
        return []
    predicted = "" if found.fraction is None else f", {found.fraction:.0%} of the predicted {found.predicted:.4g}"
    mark = "  SIMULATED GPUs" if found.simulated else ""
    count = len(found.nodes)
    line = (
        f"all-reduce over {found.ranks} ranks on {count} node{'s' * (count != 1)} ({found.program}, {found.memory} "
        f"memory): {found.bus_bandwidth:.4g} GB/s bus bandwidth{predicted}{mark}"
    )
    return ["", *_wrap(line, "  ")]


def _of_any_node(check: CheckResult, name: str) -> CheckResult:
    """Take the node's own name out of the remedy's ``--limit``, so that equal findings are equal."""
    if not check.remedy:
        return check
    return replace(check, remedy=re.sub(rf"--limit {re.escape(name)}(?![\w.,-])", lambda _: _SELF, check.remedy))


def _wrap(text: str, indent: str) -> list[str]:
    """Wrap at blanks; a word that is longer than a line (a digest, a path) is cut rather than let run out."""
    lines = textwrap.wrap(text, layout.width(), subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True)
    return lines or [""]


def _stand_ins(simulated: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    owners: dict[tuple[str, ...], list[str]] = {}
    for name, things in simulated:
        if things:
            owners.setdefault(tuple(things), []).append(name)
    lines: list[str] = []
    for group, names in owners.items():
        head = f"SIMULATED on {in_short(names)} (stand-ins of the lab, no proof of real hardware):"
        lines += ["", *_wrap(head, "  ")]
        for thing in group:
            lines += _wrap(f"  {thing}", "    ")
    return lines


def _result(verification: Verification) -> list[str]:
    """Return the summary: what failed, and on which nodes."""
    checks = list(verification.all_checks())
    failed = sum(check.status is CheckStatus.FAIL for check in checks)
    warned = sum(check.status is CheckStatus.WARN for check in checks)
    notes = f", {warned} warning{'s' * (warned != 1)}" if warned else ""
    if not failed:
        return [f"{layout.state('ok')}: nothing failed in {len(checks)} checks{notes}."]
    bad = [node.name for node in verification.nodes if any(check.status is CheckStatus.FAIL for check in node.checks)]
    where = f" on {len(bad)} of {len(verification.nodes)} nodes ({in_short(bad)})" if bad else ""
    text = f"{layout.state('NOT OK')}: {failed} check{'s' * (failed != 1)} failed{where}{notes}."
    return _wrap(text, "  ")
