"""A node as planning sees it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from provision.checks import CHECKS, judge
from provision.components import COMPONENTS
from provision.components.check import Scene
from provision.facts import NodeFacts
from provision.model import CheckResult, CheckStatus, Cluster, Node
from provision.planning.fingerprint import RoleSource
from provision.stack.compare import Deviation, deviations

_NO = frozenset({"false", "no", "off", "0", "n", "f"})


@dataclass(frozen=True)
class PlanScene:
    """One node, its facts, and the cluster."""

    node: Node
    facts: NodeFacts
    cluster: Cluster
    all_facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    """The facts of every node that was reached."""
    supported: Mapping[str, str] = field(default_factory=dict)
    """Supported systems as ``debian 12`` -> how much of it is tested; empty: unknown."""
    sources: Mapping[str, RoleSource] = field(default_factory=dict)
    """Of every role."""
    disruptive: AbstractSet[str] = frozenset()
    """Names of nodes where jobs may be disrupted."""
    only: AbstractSet[str] = frozenset()
    """The roles that were asked for; the others count as disabled, and require nothing of these. Empty: all."""
    forced: AbstractSet[str] = frozenset()
    """The roles that run without any other cause (``--force``)."""
    reboot: bool = False
    """Whether nodes may be rebooted outside of their maintenance windows (``--reboot``)."""
    now: datetime | None = None
    """When the facts were read, in the time zone of the report; None: reports contain no times."""

    def enabled(self, role: str) -> bool:
        """Return whether the role is enabled; a value with a Jinja template counts as enabled."""
        if (self.only and role not in self.only) or not COMPONENTS[role].serves(self.node.variables):
            return False
        value: Any = self.node.variables.get(f"{role}_enabled")
        return value is None or str(value).strip().lower() not in _NO

    def fails_in(self, check: str, cluster: Cluster) -> bool:
        """Return whether a check of this node would fail if `cluster` were the whole cluster."""
        all_facts = self.all_facts
        if all_facts.get(self.node.name) is not self.facts:
            all_facts = {**all_facts, self.node.name: self.facts}
        verdict = CHECKS[check].judge(Scene(self.node, self.facts, cluster, all_facts, self.supported))
        return verdict.status is CheckStatus.FAIL

    @cached_property
    def deviations(self) -> tuple[Deviation, ...]:
        """The differences from the stack lock; a node that takes no jobs has none, because its roles are disabled."""
        lock = self.cluster.stack_lock
        return deviations(lock, self.node.variables, self.facts) if lock and self.node.takes_jobs else ()

    @cached_property
    def failing(self) -> tuple[CheckResult, ...]:
        """The checks that do not pass, warnings among them."""
        results = judge(self.node, self.facts, self.cluster, all_facts=self.all_facts, supported=self.supported)
        return tuple(result for result in results if result.status in {CheckStatus.FAIL, CheckStatus.WARN})
