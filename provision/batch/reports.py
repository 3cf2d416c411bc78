"""What one node reports of its jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from provision.documents.jobs import JobReport, ReportAnswer, job_reports

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """What one node answered to ``report`` or ``look``."""

    node: str
    answer: ReportAnswer
    jobs: tuple[JobReport, ...] = ()
    problems: tuple[str, ...] = ()
    """Messages about entries that are not valid, and are left out."""

    @classmethod
    def of(cls, node: str, answer: ReportAnswer) -> Self:
        """Return the report of an answer, with the entries that are valid."""
        jobs, problems = job_reports(answer, node)
        return cls(node, answer, jobs, problems)

    @property
    def now(self) -> float:
        """The node's clock."""
        return self.answer.now

    @property
    def tried(self) -> float:
        """When the last pass over the queue began that tried all that waits, by the clock of the head; 0: not known."""
        return self.answer.tried or 0.0
