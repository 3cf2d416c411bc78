"""Findings, and the registry of checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from provision.advisor.series import NodeSeries

_SHOWN = 3
CheckFunction = Callable[[Sequence[NodeSeries]], "Answer"]


class Verdict(StrEnum):
    """The result of a check."""

    PROBLEM = "found"
    OK = "ok"
    UNKNOWN = "unknown"
    """The check could not decide, and the evidence says why; never treated as ok."""


class Confidence(StrEnum):
    """The reliability of a verdict."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True)
class Finding:
    """The result of one check of a job."""

    check: str
    """Its id, e.g. ``batch-too-small``."""
    verdict: Verdict
    evidence: str
    """The observation, with numbers; for unknown the reason."""
    remedy: str | None = None
    confidence: Confidence | None = None
    """None for unknown."""
    simulated: bool = False
    """Whether it depends on simulated GPUs."""


@dataclass(frozen=True)
class Answer:
    """A finding without the registered data of its check."""

    verdict: Verdict
    evidence: str
    confidence: Confidence | None = None


@dataclass(frozen=True)
class Check:
    """One check of the samples of all nodes of a job."""

    id: str
    remedy: str
    function: CheckFunction
    needs: str
    """The data that every node must provide for an ``ok``."""


GPUS, USERS, PROCESSES, NODE = "GPUs", "the processes on the GPUs", "the job's processes", "the node"
CHECKS: list[Check] = []
"""In display order."""


def advice(check: str, remedy: str, *, needs: str) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check with its id, the remedy for its problem, and the data that it needs from every node."""

    def register(function: CheckFunction) -> CheckFunction:
        CHECKS.append(Check(check, remedy, function, needs))
        return function

    return register


def problem(evidence: str, confidence: Confidence = Confidence.MEDIUM) -> Answer:
    """Return a problem."""
    return Answer(Verdict.PROBLEM, evidence, confidence)


def ok(evidence: str, confidence: Confidence = Confidence.MEDIUM) -> Answer:
    """Return that the check found no problem."""
    return Answer(Verdict.OK, evidence, confidence)


def unknown(reason: str) -> Answer:
    """Return why the check cannot decide."""
    return Answer(Verdict.UNKNOWN, reason)


def few(texts: Sequence[str]) -> str:
    """Return the first three texts and the number of further ones."""
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more


def percent(value: float) -> str:
    """Format a percentage."""
    return f"{value:.0f} %"
