"""Run all checks on the samples of a job."""

from __future__ import annotations

from collections.abc import Sequence

from provision.advisor import file_advice, gpu_advice, input_advice, network_advice
from provision.advisor import thresholds as limit
from provision.advisor.base import CHECKS, GPUS, NODE, PROCESSES, USERS, Answer, Check, Finding, Verdict, few, unknown
from provision.advisor.series import NodeSeries

MODULES = (gpu_advice, input_advice, file_advice, network_advice)
"""The modules with the checks; importing them registers the checks."""


def advise_from(job: Sequence[NodeSeries]) -> list[Finding]:
    """Check the samples of a job; nothing is raised, and missing data gives unknown.

    Returns:
        A finding for each check: problems first, by confidence; then unknown; then ok.
    """
    simulated = any(series.simulated for series in job)
    findings = [_finding(check, _answer(check, job), simulated=simulated) for check in CHECKS]
    order = [Verdict.PROBLEM, Verdict.UNKNOWN, Verdict.OK]
    confidences = ["high", "medium", "low"]
    return sorted(
        findings,
        key=lambda finding: (
            order.index(finding.verdict),
            confidences.index(finding.confidence.value) if finding.confidence else 0,
        ),
    )


def _answer(check: Check, job: Sequence[NodeSeries]) -> Answer:
    """Return the result of a check; an ok needs data from every node."""
    if not job:
        return unknown("nothing was sampled")
    answer = check.function(job)
    missing = [series.node for series in job if not _has_data(series, check.needs)]
    if answer.verdict is Verdict.OK and missing:
        return unknown(f"{answer.evidence}; but {check.needs} are unknown on {few(missing)}")
    return answer


def _has_data(series: NodeSeries, what: str) -> bool:
    enough = limit.FEWEST_SAMPLES.value
    if what == GPUS:
        requested = set(series.given() if series.containers else series.gpus)
        sampled = {
            uuid
            for uuid, samples in series.job_gpus().items()
            if sum(s.utilization is not None for s in samples) >= enough
        }
        return sampled >= requested and bool(requested or series.containers)
    if what == USERS:
        return series.users is not None
    if what == PROCESSES:
        return any(len(process.samples) >= enough for process in series.job_processes())
    return what == NODE and len(series.samples) >= enough


def _finding(check: Check, answer: Answer, *, simulated: bool) -> Finding:
    remedy = check.remedy if answer.verdict is Verdict.PROBLEM else None
    marked = simulated and answer.verdict is not Verdict.UNKNOWN
    return Finding(check.id, answer.verdict, answer.evidence, remedy, answer.confidence, marked)
