"""Recording in the inventory what others set up on the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from provision.model import Cluster, Node, NodeAdoption, Secret
from provision.workflow.plan import look

if TYPE_CHECKING:
    from provision.inventory.record import Addition

__all__ = ["adopt", "plan_adopt"]


def plan_adopt(cluster: Cluster, nodes: Sequence[Node]) -> tuple[tuple[NodeAdoption, ...], tuple[Addition, ...]]:
    """Look at `nodes`; return what is found on each, and what is to be added to which file of the inventory."""
    from provision.inventory.record import additions
    from provision.planning.preservation import describe_preserved

    found = look(cluster, nodes)
    told: list[NodeAdoption] = []
    wanted: dict[str, dict[str, Any]] = {}
    for plan in found.plan.nodes:
        if plan.error or plan.name not in found.facts:
            told.append(NodeAdoption(plan.name, (), {}, plan.error, plan.remedy, plan.reachable))
            continue
        kept = found.kept.get(plan.name, {})
        wanted[plan.name] = {name: value for variables in kept.values() for name, value in variables.items()}
        told.append(NodeAdoption(plan.name, describe_preserved(found.facts[plan.name], kept), wanted[plan.name]))
    return tuple(told), additions(cluster, wanted)


def adopt(cluster: Cluster, parts: Sequence[Addition], *, become_password: Secret | None = None) -> None:
    """Write it into the inventory.

    Raises:
        ProvisionError: that cannot be done; the inventory is as it was.
    """
    from provision.inventory.record import record

    record(cluster, tuple(parts), become_password=become_password)
