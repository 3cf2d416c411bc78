"""A verification as JSON and as text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision.checks.minimums import NONE, Held
from provision.model import CheckResult, CheckStatus, Collective, NodeChecks, PairBandwidth, Verification
from provision.report.job_words import columns

__all__ = ["as_document", "as_text", "profile_document", "profile_text"]

_CLUSTER = "(cluster)"
_WIDTH = 80
_PAIRS_SHOWN = 8
_HEADS = ("COMPONENT", "REQUIRED", "FOUND", "VERDICT")
_FOUND = 22
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
    """Return the report for a person, at most 80 columns wide: counts, then each warning and failure.

    `simulated` names for each node the stand-ins that it carries. With `verbose` every check is shown.
    """
    groups = [*verification.nodes]
    if verification.cluster:
        groups.append(NodeChecks(_CLUSTER, verification.cluster))
    lines = _counts(groups)
    shown = set(_SEEN_FIRST) if verbose else {CheckStatus.FAIL, CheckStatus.WARN}
    for status in _SEEN_FIRST:
        if status in shown:
            lines += _details(groups, status)
    lines += _pairs(verification.bandwidth.pairs) if verification.bandwidth else []
    lines += _collective(verification.collective) if verification.collective else []
    lines += _stand_ins(simulated)
    return "\n".join([*lines, "", _verdict(verification)])


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
    """Return what the guide asks for and each node has, as tables of at most 80 columns."""
    blocks = []
    for node, items in held.items():
        rows = [(item.component, item.required, _cut(item.found, _FOUND), _mark(item)) for item in items]
        blocks.append("\n".join([f"profile {name} on {node}:", *columns([_HEADS, *rows], "  ")]))
    return "\n\n".join(blocks)


def _mark(item: Held) -> str:
    return item.verdict.status.value + (" SIMULATED" if item.verdict.simulated else "")


def _counts(groups: Sequence[NodeChecks]) -> list[str]:
    width = min(max([len(group.name) for group in groups] + [4]), _WIDTH - 48)
    lines = [f"{'node':<{width}}  {'result':<6}  {'pass':>4}  {'warn':>4}  {'fail':>4}  {'skip':>4}"]
    for group in groups:
        statuses = [check.status for check in group.checks]
        counts = "  ".join(f"{statuses.count(status):>4}" for status in CheckStatus)
        note = "  SIMULATED parts" if any(check.simulated for check in group.checks) else ""
        lines.append(f"{_cut(group.name, width):<{width}}  {_worst(statuses):<6}  {counts}{note}")
    return lines


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _worst(statuses: Iterable[CheckStatus]) -> str:
    found = set(statuses)
    return next((status.value for status in (CheckStatus.FAIL, CheckStatus.WARN) if status in found), "pass")


def _details(groups: Sequence[NodeChecks], status: CheckStatus) -> list[str]:
    """One block for each finding; nodes with the same finding share it, and a remedy that names them all."""
    owners: dict[CheckResult, list[str]] = {}
    for group in groups:
        for check in group.checks:
            if check.status is status:
                owners.setdefault(_of_any_node(check, group.name), []).append(group.name)
    lines: list[str] = []
    for check, names in owners.items():
        mark = "  SIMULATED" if check.simulated else ""
        where = "of the cluster" if names == [_CLUSTER] else f"on {_names(names)}"
        lines += ["", *_wrap(f"{status.value.upper():<4}  {check.id}{mark}  {where}", "      ")]
        lines += _wrap(f"      {check.reason}", "      ")
        if check.remedy:
            remedy = check.remedy.replace(_SELF, f"--limit {','.join(names)}")
            lines += _wrap(f"      remedy: {remedy}", "        ")
    return lines


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


def _names(names: Sequence[str]) -> str:
    few = 6
    return ", ".join(names[:few]) + (f" and {len(names) - few} more" if len(names) > few else "")


def _wrap(text: str, indent: str) -> list[str]:
    """Wrap at blanks; a word that is longer than a line (a digest, a path) is cut rather than let run out."""
    lines = textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True)
    return lines or [""]


def _stand_ins(simulated: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    owners: dict[tuple[str, ...], list[str]] = {}
    for name, things in simulated:
        if things:
            owners.setdefault(tuple(things), []).append(name)
    lines: list[str] = []
    for group, names in owners.items():
        lines += ["", *_wrap(f"SIMULATED on {_names(names)} (stand-ins of the lab, no proof of real hardware):", "  ")]
        for thing in group:
            lines += _wrap(f"  {thing}", "    ")
    return lines


def _verdict(verification: Verification) -> str:
    checks = list(verification.all_checks())
    failed = sum(check.status is CheckStatus.FAIL for check in checks)
    warned = sum(check.status is CheckStatus.WARN for check in checks)
    notes = f", {warned} warning{'s' * (warned != 1)}" if warned else ""
    if failed:
        return f"NOT OK: {failed} check{'s' * (failed != 1)} failed{notes}."
    return f"ok: nothing failed in {len(checks)} checks{notes}."
