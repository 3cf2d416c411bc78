"""The results of a verification as JSON and as text."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from provision.checks.minimums import Held
from provision.checks.requirements import NONE
from provision.model import CheckResult, CheckStatus, Collective, NodeChecks, PairBandwidth, Verification
from provision.report import layout
from provision.report.grouping import Group, grouped
from provision.report.job_words import columns
from provision.report.node_names import as_limit, in_short
from provision.report.reasons import message, remedy

if TYPE_CHECKING:
    from provision.report.json_documents.probes import (
        Collective as CollectiveDocument,
    )
    from provision.report.json_documents.probes import (
        NodeCheck,
        Pair,
        Profile,
        ProfiledNode,
    )
    from provision.report.json_documents.probes import (
        Verification as VerificationDocument,
    )

_CLUSTER = "(cluster)"
_PAIRS_SHOWN = 8
_HEADS = ("COMPONENT", "REQUIRED", "FOUND", "VERDICT")
_PRESENT_WIDTH = 22
_COUNTS = 48
"""Columns of the counts of a node."""
_ORDER = (CheckStatus.FAIL, CheckStatus.WARN, CheckStatus.SKIP, CheckStatus.PASS)


def as_document(verification: Verification) -> VerificationDocument:
    """Return the document of ``verify --json``; keys are an interface and only ever added."""
    document: VerificationDocument = {
        "ok": verification.ok,
        "nodes": [
            {"name": node.name, "checks": [_check_document(check, node.name) for check in node.checks]}
            for node in verification.nodes
        ],
        "cluster": [_check_document(check) for check in verification.cluster],
    }
    if verification.bandwidth is not None:
        document["pairs"] = [_pair_document(pair) for pair in verification.bandwidth.pairs]
    if verification.collective is not None:
        document["collective"] = _collective_document(verification.collective)
    return document


def _collective_document(collective: Collective) -> CollectiveDocument:
    """Return the document of a collective benchmark; bandwidths are GB/s."""
    return {
        "program": collective.program,
        "memory": collective.memory,
        "nodes": list(collective.nodes),
        "ranks": collective.ranks,
        "size_bytes": collective.size_bytes,
        "bus_bandwidth_gb_s": collective.bus_bandwidth,
        "predicted_gb_s": collective.predicted,
        "fraction": None if collective.fraction is None else round(collective.fraction, 4),
        "minimum_fraction": collective.minimum,
        "wrong": collective.wrong,
        "simulated": collective.simulated,
        "left_out": [{"node": name, "reason": reason} for name, reason in collective.left_out.items()],
        "reason": collective.reason or None,
    }


def _pair_document(pair: PairBandwidth) -> Pair:
    """Return the document of a pair; rates are Gbit/s, and `device` and `port` are those of the sender `a`."""
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


def _check_document(check: CheckResult, node: str = "") -> NodeCheck:
    return {
        "id": check.id,
        "status": check.status,
        "simulated": check.simulated,
        "reason": message(check.reason, node),
        "remedy": remedy(check.reason, node) or None,
        **check.reason.as_document(),
    }


def as_text(
    verification: Verification, *, verbose: bool = False, simulated: Sequence[tuple[str, Sequence[str]]] = ()
) -> str:
    """Return the report as text: the result, counts, then each warning and failure with its nodes.

    Args:
        verification: the results.
        verbose: show every check, a line of counts for each node, and each node's own details.
        simulated: the SIMULATED components of each node.
    """
    nodes = [*verification.nodes]
    if verification.cluster:
        nodes.append(NodeChecks(_CLUSTER, verification.cluster))
    lines = [*_result(verification), "", *_counts(nodes, verbose=verbose)]
    shown = set(_ORDER) if verbose else {CheckStatus.FAIL, CheckStatus.WARN}
    for status in _ORDER:
        if status in shown:
            lines += _details(nodes, status, verbose=verbose)
    lines += _pairs(verification.bandwidth.pairs) if verification.bandwidth else []
    lines += _collective(verification.collective) if verification.collective else []
    return "\n".join([*lines, *_stand_ins(simulated)])


def profile_document(name: str, held: Mapping[str, Sequence[Held]]) -> Profile:
    """Return the part ``profile`` of ``verify --profile NAME --json``."""
    nodes: list[ProfiledNode] = [
        {
            "name": node,
            "components": [
                {
                    "component": item.component,
                    "found": None if item.present == NONE else item.present,
                    "required": item.required,
                    "status": item.verdict.status,
                    "simulated": item.verdict.simulated,
                }
                for item in items
            ],
        }
        for node, items in held.items()
    ]
    return {"name": name, "nodes": nodes}


def profile_text(name: str, held: Mapping[str, Sequence[Held]]) -> str:
    """Return required and present versions: a table for each group of equal nodes."""
    blocks = []
    for group in grouped(held.items(), lambda _, items: tuple(items)):
        rows = [
            (item.component, item.required, layout.shortened(item.present, _PRESENT_WIDTH), _mark(item))
            for item in group.value
        ]
        blocks.append("\n".join([f"profile {name} on {in_short(group.names)}:", *columns([_HEADS, *rows], "  ")]))
    return "\n\n".join(blocks)


def _mark(item: Held) -> str:
    return layout.state(item.verdict.status.value) + (" SIMULATED" if item.verdict.simulated else "")


def _counts(nodes: Sequence[NodeChecks], *, verbose: bool) -> list[str]:
    """Return a line of counts for each group of nodes with equal counts; with `verbose` for each node."""

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
    lines = [f"{'NODE':<{width}}  {'RESULT':<6}  {'PASS':>4}  {'WARN':>4}  {'FAIL':>4}  {'SKIP':>4}"]
    return lines + [f"{layout.shortened(names, width):<{width}}  {line}" for names, line in groups]


def _worst(statuses: Iterable[CheckStatus]) -> str:
    present = set(statuses)
    return next((status.value for status in (CheckStatus.FAIL, CheckStatus.WARN) if status in present), "pass")


def _details(nodes: Sequence[NodeChecks], status: CheckStatus, *, verbose: bool) -> list[str]:
    """Return a block for each result; nodes with the same result share it, with a remedy that names all of them."""
    items = [(node.name, check) for node in nodes for check in node.checks if check.status is status]
    groups: list[Group[CheckResult]] = grouped(items, lambda _, check: check, None if verbose else _outline)
    lines: list[str] = []
    for group in groups:
        check, names = group.value, group.names
        mark = "  SIMULATED" if check.simulated else ""
        location = "of the cluster" if names == [_CLUSTER] else f"on {in_short(names)}"
        name = layout.state(status.value.upper(), 4)
        lines += ["", *layout.wrapped(f"{name}  {check.id}{mark}  {location}", "      ")]
        lines += layout.wrapped(f"      {message(check.reason, in_short(names))}", "      ")
        lines += layout.wrapped(f"      {group.note}", "      ") if group.varied else []
        if advice := remedy(check.reason, as_limit(names)):
            lines += layout.wrapped(f"      hint: {_short_limits(advice)}", "        ")
    return lines


def _short_limits(advice: str) -> str:
    """Return the remedy with ranges instead of lists of nodes."""
    lists = re.compile(r"--limit ([\w.-]+(?:,[\w.-]+){3,})")
    return lists.sub(lambda match: f"--limit {as_limit(match[1].split(','))}", advice)


def _outline(_: str, check: CheckResult) -> Hashable:
    return check.id, check.simulated, check.reason.code


def _pairs(pairs: Sequence[PairBandwidth]) -> list[str]:
    """Return the slowest measurements, failed ones first."""
    if not pairs:
        return []

    def speed(pair: PairBandwidth) -> float:
        return -1.0 if pair.gbit_s is None else pair.gbit_s / (pair.line_rate_gbit_s or 1.0)

    lines = ["", "bandwidth between containers in Gbit/s, slowest first:"]
    for pair in sorted(pairs, key=speed)[:_PAIRS_SHOWN]:
        rate = "" if pair.line_rate_gbit_s is None else f" of {pair.line_rate_gbit_s:g}"
        value = "failed" if pair.gbit_s is None else f"{pair.gbit_s:.3g}{rate} ({pair.memory} memory)"
        lines += layout.wrapped(f"  {pair.a} -> {pair.b}  {value}", "    ")
    if len(pairs) > _PAIRS_SHOWN:
        lines.append(f"  and {len(pairs) - _PAIRS_SHOWN} more (--json has all)")
    return lines


def _collective(collective: Collective) -> list[str]:
    """Return the measured all-reduce; a missing one is explained by its check."""
    if collective.bus_bandwidth is None:
        return []
    predicted = (
        ""
        if collective.fraction is None
        else f", {collective.fraction:.0%} of the predicted {collective.predicted:.4g}"
    )
    mark = "  SIMULATED GPUs" if collective.simulated else ""
    count = len(collective.nodes)
    line = (
        f"all-reduce over {collective.ranks} ranks on {count} node{'s' * (count != 1)} "
        f"({collective.program}, {collective.memory} memory): "
        f"{collective.bus_bandwidth:.4g} GB/s bus bandwidth{predicted}{mark}"
    )
    return ["", *layout.wrapped(line, "  ")]


def _stand_ins(simulated: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    owners: dict[tuple[str, ...], list[str]] = {}
    for name, components in simulated:
        if components:
            owners.setdefault(tuple(components), []).append(name)
    lines: list[str] = []
    for group, names in owners.items():
        head = f"SIMULATED on {in_short(names)} (components of the lab, no proof of real hardware):"
        lines += ["", *layout.wrapped(head, "  ")]
        for component in group:
            lines += layout.wrapped(f"  {component}", "    ")
    return lines


def _result(verification: Verification) -> list[str]:
    """Return the summary: the failures, and their nodes."""
    checks = list(verification.all_checks())
    failed = sum(check.status is CheckStatus.FAIL for check in checks)
    warned = sum(check.status is CheckStatus.WARN for check in checks)
    notes = f", {warned} warning{'s' * (warned != 1)}" if warned else ""
    if not failed:
        return [f"{layout.state('ok')}: no failures in {len(checks)} checks{notes}."]
    bad = [node.name for node in verification.nodes if any(check.status is CheckStatus.FAIL for check in node.checks)]
    location = f" on {len(bad)} of {len(verification.nodes)} nodes ({in_short(bad)})" if bad else ""
    text = f"{layout.state('NOT OK')}: {failed} check{'s' * (failed != 1)} failed{location}{notes}."
    return layout.wrapped(text, "  ")
