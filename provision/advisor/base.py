"""What advice is made of: a finding for each check, and where the checks are registered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from provision.advisor.series import NodeSeries

__all__ = [
    "CHECKS",
    "GPUS",
    "NODE",
    "PROCESSES",
    "USERS",
    "Answer",
    "Check",
    "Confidence",
    "Finding",
    "Verdict",
    "advice",
    "found",
    "ok",
    "unknown",
]


Judge = Callable[[Sequence[NodeSeries]], "Answer"]


class Verdict(Enum):
    """What a check says."""

    FOUND = "found"
    OK = "ok"
    UNKNOWN = "unknown"
    """It could not be judged, and the evidence says why; never taken for ok."""


class Confidence(Enum):
    """How much a verdict can be relied on."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True)
class Finding:
    """What one check says of a job."""

    check: str
    """Its id, e.g. ``batch-too-small``."""
    verdict: Verdict
    evidence: str
    """What was seen, with numbers; for unknown why nothing can be told."""
    remedy: str | None = None
    confidence: Confidence | None = None
    """None for unknown."""
    simulated: bool = False
    """Whether it rests on a stand-in for GPUs."""


@dataclass(frozen=True)
class Answer:
    """A finding without what the registry knows of it."""

    verdict: Verdict
    evidence: str
    confidence: Confidence | None = None


@dataclass(frozen=True)
class Check:
    """One question to the samples of all nodes of a job."""

    id: str
    remedy: str
    judge: Judge
    needs: str
    """What every node has to tell of for an ``ok``."""


GPUS, USERS, PROCESSES, NODE = "GPUs", "the processes on the GPUs", "the job's processes", "the node"
CHECKS: list[Check] = []
"""In the order in which they are shown."""


def advice(check: str, remedy: str, *, needs: str) -> Callable[[Judge], Judge]:
    """Register a check with its id, the remedy for what it finds, and what it needs of every node."""

    def register(judge: Judge) -> Judge:
        CHECKS.append(Check(check, remedy, judge, needs))
        return judge

    return register


def found(evidence: str, confidence: Confidence = Confidence.MEDIUM) -> Answer:
    """Say that something was found."""
    return Answer(Verdict.FOUND, evidence, confidence)


def ok(evidence: str, confidence: Confidence = Confidence.MEDIUM) -> Answer:
    """Say that it was looked at, and is not so."""
    return Answer(Verdict.OK, evidence, confidence)


def unknown(reason: str) -> Answer:
    """Say why it cannot be judged."""
    return Answer(Verdict.UNKNOWN, reason)
