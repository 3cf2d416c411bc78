"""Results of checks of a node or of the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from provision.model.bandwidth import Bandwidth, Collective
from provision.model.reason import Reason


class CheckStatus(StrEnum):
    """The four verdicts of a check; ``skip`` always has the reason why the check was not possible."""

    PASS = "pass"  # noqa: S105 # nosec B105 # an outcome, not a password
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class CheckResult:
    """Result of one check, for example ``docker_engine.service`` pass."""

    id: str
    """``<role or area>.<noun>``; stable, because scripts match on it."""
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
    """Results of ``verify``: the checks of each node, and of the cluster as a whole."""

    nodes: tuple[NodeChecks, ...]
    cluster: tuple[CheckResult, ...] = ()
    bandwidth: Bandwidth | None = None
    """None if it was not measured (level ``quick``)."""
    collective: Collective | None = None
    """None if no all-reduce was requested."""

    @property
    def ok(self) -> bool:
        """True if no check failed; warnings and skipped checks do not count."""
        return all(check.status is not CheckStatus.FAIL for check in self.all_checks())

    def all_checks(self) -> Iterable[CheckResult]:
        """Yield the results of each node, then of the cluster."""
        for node in self.nodes:
            yield from node.checks
        yield from self.cluster
