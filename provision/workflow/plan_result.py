"""A request for a plan, and its result."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from provision.errors import ProvisionError
from provision.model import Cluster, NodePlan, Plan

if TYPE_CHECKING:
    from provision.facts import NodeFacts
    from provision.planning import RoleSource


@dataclass(frozen=True)
class Request:
    """What the operator asks for, beyond what the inventory wants."""

    only: tuple[str, ...] = ()
    """Roles; the plan is cut to them. Empty: all."""
    forced: tuple[str, ...] = ()
    """Roles that run whether there is a reason or not."""
    disruptive: frozenset[str] = frozenset()
    """Nodes where running jobs may be disturbed."""
    reboot: bool = False
    """Whether nodes may be rebooted outside of their maintenance windows."""


@dataclass(frozen=True)
class PlanResult:
    """The result of a probe, and the plan that follows from it."""

    cluster: Cluster
    """With the roles' defaults, and what is kept."""
    plan: Plan
    facts: Mapping[str, NodeFacts]
    """Of the nodes that were reached and can be worked on."""
    errors: Mapping[str, ProvisionError]
    """Of all others."""
    sources: Mapping[str, RoleSource] = field(default_factory=dict)
    seconds: float = 0.0
    """Duration of the probe."""
    stated: Cluster | None = None
    """As the inventory has it, without the roles' defaults."""
    preserved: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Pre-existing configuration that the inventory lacks: node -> role -> variables that preserve it."""

    def provisioned(self, name: str) -> bool:
        """Return whether every role that is enabled and requested on the node has left a receipt there."""
        from provision.components import COMPONENTS
        from provision.facts import Unknown

        facts, node = self.facts.get(name), self.cluster.node(name)
        wanted = [
            role
            for role, component in COMPONENTS.items()
            if node.variables.get(f"{role}_enabled") is not False
            and component.serves(node.variables)
            and component.is_requested_on(node)
        ]
        if facts is None or isinstance(facts.receipts, Unknown):
            return False
        receipts = facts.receipts
        return all(role in receipts for role in wanted)

    def digests(self) -> dict[str, str]:
        """Return for each node a hash of what its plan rests on.

        It does not depend on secrets, which could be guessed from it. They are removed by name and by shape, because
        a decrypted value of a vault is an ordinary string.
        """
        from provision.report.redaction import Redactor

        redactor = Redactor()
        shared = {
            "nodes": [node.name for node in self.cluster.nodes],
            "roles": {role: source.code for role, source in self.sources.items()},
            "lock": self.cluster.stack_lock,
        }
        digests: dict[str, str] = {}
        for plan in self.plan.nodes:
            inputs = {**shared, "variables": redactor.data(self.cluster.node(plan.name).variables)}
            digests[plan.name] = _digest(plan, self.facts.get(plan.name), inputs)
        return digests


def _digest(plan: NodePlan, facts: NodeFacts | None, inputs: Mapping[str, Any]) -> str:
    """Return a hash of a plan, its inputs and facts, none of which changes by itself."""
    import msgspec

    from provision.facts import Unknown

    bare = replace(
        plan,
        seconds=None,
        steps=tuple(replace(step, packages=(), files=()) for step in plan.steps),
        problems=(),
        dependencies=(),
    )
    seen: dict[str, Any] = {"plan": bare, "inputs": inputs}
    if facts is not None:
        boot = facts.boot
        seen |= {
            "boot": None if isinstance(boot, Unknown) else boot.boot_id,
            "system": facts.system,
            "managed": facts.managed,
            "receipts": facts.receipts,
        }
    # Deterministic: sets are encoded in an order that is the same in every process.
    text = msgspec.json.encode(seen, order="deterministic", enc_hook=repr)
    return hashlib.sha256(text).hexdigest()[:32]
