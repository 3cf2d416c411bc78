"""All checks over what was sampled of a job."""

from __future__ import annotations

from collections.abc import Sequence

from provision.advisor import file_advice, gpu_advice, input_advice, network_advice
from provision.advisor import thresholds as limit
from provision.advisor.base import CHECKS, GPUS, NODE, PROCESSES, USERS, Answer, Check, Finding, Verdict, unknown
from provision.advisor.series import NodeSeries
from provision.advisor.wording import few

__all__ = ["MODULES", "advise_from"]

MODULES = (gpu_advice, input_advice, file_advice, network_advice)
"""Where the checks are; importing them registers them."""


def advise_from(job: Sequence[NodeSeries]) -> list[Finding]:
    """Judge what was sampled of a job; nothing is raised, and what cannot be told is unknown.

    Args:
        job: one series for each node of the job.

    Returns:
        A finding for each check: what was found first, the surest first; then what is unknown; then what is ok.
    """
    simulated = any(series.simulated for series in job)
    findings = [_finding(check, _judged(check, job), simulated=simulated) for check in CHECKS]
    order = [Verdict.FOUND, Verdict.UNKNOWN, Verdict.OK]
    surest = ["high", "medium", "low"]
    return sorted(
        findings,
        key=lambda one: (order.index(one.verdict), surest.index(one.confidence.value) if one.confidence else 0),
    )


def _judged(check: Check, job: Sequence[NodeSeries]) -> Answer:
    """A node that tells nothing of what counts leaves it open whether all is well."""
    if not job:
        return unknown("nothing was sampled")
    answer = check.judge(job)
    missing = [series.node for series in job if not _tells(series, check.needs)]
    if answer.verdict is Verdict.OK and missing:
        return unknown(f"{answer.evidence}; but nothing is known of {check.needs} on {few(missing)}")
    return answer


def _tells(series: NodeSeries, what: str) -> bool:
    enough = limit.FEWEST_SAMPLES.value
    if what == GPUS:
        wanted = set(series.given() if series.containers else series.gpus)
        told = {
            uuid
            for uuid, samples in series.job_gpus().items()
            if sum(s.utilization is not None for s in samples) >= enough
        }
        return told >= wanted and bool(wanted or series.containers)
    if what == USERS:
        return series.users is not None
    if what == PROCESSES:
        return any(len(process.samples) >= enough for process in series.job_processes())
    return what == NODE and len(series.samples) >= enough


def _finding(check: Check, answer: Answer, *, simulated: bool) -> Finding:
    remedy = check.remedy if answer.verdict is Verdict.FOUND else None
    marked = simulated and answer.verdict is not Verdict.UNKNOWN
    return Finding(check.id, answer.verdict, answer.evidence, remedy, answer.confidence, marked)
