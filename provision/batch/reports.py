"""The report of a node about its jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from provision.documents.jobs import JobReport, ReportAnswer, job_reports


@dataclass(frozen=True)
class Report:
    """The answer of a node to ``report`` or ``look``."""

    node: str
    answer: ReportAnswer
    jobs: tuple[JobReport, ...] = ()
    problems: tuple[str, ...] = ()
    """Messages about invalid entries, which are ignored."""

    @classmethod
    def of(cls, node: str, answer: ReportAnswer) -> Self:
        """Return the report of an answer, with its valid entries."""
        jobs, problems = job_reports(answer, node)
        return cls(node, answer, jobs, problems)

    @property
    def now(self) -> float:
        """The node's clock."""
        return self.answer.now

    @property
    def tried(self) -> float:
        """The start of the last scheduling pass that tried all waiting jobs, by the queue host's clock; 0: unknown."""
        return self.answer.tried or 0.0
