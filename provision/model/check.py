"""What a check says about a node or about the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from provision.model.bandwidth import Bandwidth, Collective
from provision.model.reason import Reason

__all__ = ["CheckResult", "CheckStatus", "NodeChecks", "Verification"]


class CheckStatus(StrEnum):
    """The four outcomes; ``skip`` always carries the reason for which nothing could be judged."""

    PASS = "pass"  # noqa: S105 # nosec B105 # an outcome, not a password
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class CheckResult:
    """One judgement, e.g. ``docker_engine.service`` pass."""

    id: str
    """``<role or area>.<noun>``; stable, others' scripts match on it."""
    status: CheckStatus
    reason: Reason
    """The result; its wording has a remedy for every warn and fail."""
    simulated: bool = False
    """Whether the result is about simulated hardware."""


@dataclass(frozen=True)
class NodeChecks:
    """All check results of one node."""

    name: str
    checks: tuple[CheckResult, ...]


@dataclass(frozen=True)
class Verification:
    """The outcome of ``verify``: per node, and for what only the cluster as a whole can show."""

    nodes: tuple[NodeChecks, ...]
    cluster: tuple[CheckResult, ...] = ()
    bandwidth: Bandwidth | None = None
    """None when none was measured (level ``quick``)."""
    collective: Collective | None = None
    """None when no all-reduce was asked for."""

    @property
    def ok(self) -> bool:
        """True when nothing failed; warnings and skips do not count."""
        return all(check.status is not CheckStatus.FAIL for check in self.all_checks())

    def all_checks(self) -> Iterable[CheckResult]:
        """Every result, node by node, then the cluster's."""
        for node in self.nodes:
            yield from node.checks
        yield from self.cluster
