"""Findings of the advisor as JSON and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from provision.advisor.base import Finding, Verdict
from provision.advisor.script import RuleFinding, RuleVerdict
from provision.advisor.series import NodeSeries, mean
from provision.batch.durations import elapsed
from provision.report import layout
from provision.report.grouping import reason_lines

if TYPE_CHECKING:
    from provision.report.json_documents.advice import AdviceGpu, AdviceNode, JobFindings, ScriptAdvice

_RULE, _WORD = 10, 8
_CHECK = 24
_NOTES = 6


def script_document(script: str, findings: Sequence[RuleFinding]) -> ScriptAdvice:
    """Return the document of ``advise --script --json``; keys are an interface and only ever added."""
    return {
        "ok": not any(finding.verdict is RuleVerdict.BROKEN for finding in findings),
        "script": script,
        "rules": [
            {
                "rule": finding.rule,
                "verdict": finding.verdict,
                "file": finding.file,
                "line": finding.line,
                "evidence": finding.evidence,
                "remedy": finding.remedy,
                "framework": finding.framework,
            }
            for finding in findings
        ],
    }


def script_text(script: str, findings: Sequence[RuleFinding]) -> str:
    """Return a table of the five rules with their verdicts, at most 80 columns wide."""
    lines = [f"{'RULE':<{_RULE}}{'VERDICT':<{_WORD + 2}}EVIDENCE"]
    for finding in findings:
        word = finding.verdict.value
        shown = word.upper() if finding.verdict is RuleVerdict.BROKEN else word
        elsewhere = f"{finding.file}: " if finding.file != script else ""
        lines += row(f"{finding.rule:<{_RULE}}{shown:<{_WORD + 2}}", elsewhere + finding.evidence)
        if finding.remedy:
            lines += row(" " * (_RULE + _WORD + 2), f"-> {finding.remedy}")
    counted = Counter(finding.verdict for finding in findings)
    summary = ", ".join(f"{counted[verdict]} {verdict.value}" for verdict in RuleVerdict if counted[verdict])
    return "\n".join([*lines, "", f"{script}: {summary}"])


def advice_document(job: str, findings: Sequence[Finding]) -> JobFindings:
    """Return a job's findings as JSON; keys are an interface and only ever added."""
    return {
        "ok": not any(finding.verdict is Verdict.PROBLEM for finding in findings),
        "job": job,
        "simulated": any(finding.simulated for finding in findings),
        "findings": [
            {
                "check": finding.check,
                "verdict": finding.verdict,
                "evidence": finding.evidence,
                "remedy": finding.remedy,
                "confidence": finding.confidence,
                "simulated": finding.simulated,
            }
            for finding in findings
        ],
    }


def advice_text(job: str, findings: Sequence[Finding]) -> str:
    """Return a table of a job's findings, at most 80 columns wide."""
    lines = [f"{'CHECK':<{_CHECK}}{'VERDICT':<{_WORD + 2}}{'CONF.':<8}EVIDENCE"]
    for finding in findings:
        shown = finding.verdict.value.upper() if finding.verdict is Verdict.PROBLEM else finding.verdict.value
        sure = finding.confidence.value if finding.confidence else "-"
        mark = "SIMULATED: " if finding.simulated else ""
        lines += row(f"{finding.check:<{_CHECK}}{shown:<{_WORD + 2}}{sure:<8}", mark + finding.evidence)
        if finding.remedy:
            lines += row(" " * (_CHECK + _WORD + 10), f"-> {finding.remedy}")
    counted = Counter(finding.verdict for finding in findings)
    summary = ", ".join(f"{counted[verdict]} {verdict.value}" for verdict in Verdict if counted[verdict])
    return "\n".join([*lines, "", f"{job}: {summary}"])


def nodes_document(nodes: Sequence[NodeSeries], lost: Mapping[str, str]) -> list[AdviceNode]:
    """Return the samples of each node, and the errors; keys are an interface and only ever added.

    ``utilization`` and ``memory`` are per cent (mean, maximum), ``power`` watts (mean), ``seconds`` the sampled time.
    """
    return [
        {
            "node": series.node,
            "instances": list(series.containers),
            "samples": len(series.samples),
            "seconds": round(series.samples[-1].t - series.samples[0].t, 1) if series.samples else 0.0,
            "processes": len(series.job_processes()),
            "gpus": [_gpu(series, uuid) for uuid in series.given() or series.job_gpus()],
            "simulated": series.simulated,
            "notes": list(series.notes),
            "error": lost.get(series.node),
        }
        for series in nodes
    ]


def _gpu(series: NodeSeries, uuid: str) -> AdviceGpu:
    samples, device = series.gpus.get(uuid, []), series.devices.get(uuid)
    full = [100 * s.memory_used / s.memory_total for s in samples if s.memory_used is not None and s.memory_total]
    return {
        "uuid": uuid,
        "index": int(device.index) if device and device.index is not None else None,
        "instance": series.given().get(uuid),
        "utilization": _rounded(mean(sample.utilization for sample in samples)),
        "memory": _rounded(max(full, default=None)),
        "power": _rounded(mean(sample.power for sample in samples)),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def nodes_text(job: str, nodes: Sequence[NodeSeries], lost: Mapping[str, str]) -> str:
    """Return a line for each node of a job and for each incomplete report, at most 80 columns wide."""
    wide = max([len("NODE"), *(len(series.node) for series in nodes)]) + 2
    lines = [f"{'NODE':<{wide}}{'GPUS':<6}{'UTIL':<10}{'MEMORY':<10}{'SAMPLES':<9}INSTANCES"]
    for series, document in zip(nodes, nodes_document(nodes, lost), strict=True):
        names = ", ".join(name.removeprefix(f"{job}-") for name in document["instances"]) or "-"
        util, memory = (_span([gpu[key] for gpu in document["gpus"]]) for key in ("utilization", "memory"))
        left = f"{series.node:<{wide}}{len(document['gpus']):<6}{util:<10}{memory:<10}{document['samples']:<9}"
        lines += row(left, names)
    lines += [part for line in reason_lines(lost, between=" did not report all: ") for part in row("", line)]
    notes = [f"{series.node}: {note}" for series in nodes for note in series.notes]
    shown = notes[:_NOTES] + ([f"and {len(notes) - _NOTES} more notes"] if len(notes) > _NOTES else [])
    return "\n".join([*lines, *(line for note in shown for line in row("", note))])


def _span(values: Sequence[float | None]) -> str:
    """Return percentages as one value or as a range."""
    percentages = sorted(f"{value:3.0f}" for value in values if value is not None)
    if not percentages:
        return "-"
    low, high = percentages[0].strip(), percentages[-1].strip()
    return f"{low} %" if low == high else f"{low}-{high} %"


def idle_text(job: str, seconds: float) -> str:
    """Return a suggestion to stop a job whose GPUs are idle."""
    return "\n".join(row("", f"All GPUs of {job} were idle for {elapsed(seconds)}. To stop it: provision stop {job}"))


def ended_text(job: str, how: str) -> str:
    """Return a note that some of the samples are from the time after the job."""
    return "\n".join(row("", f"{job} did not run during all of the sampling: {how}. Its GPUs were idle after that."))


def row(left: str, text: str) -> list[str]:
    """Wrap a text to the right of `left`, without control characters."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return layout.hanging(left, shown)
