"""Adopt pre-existing configuration of nodes into the inventory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from provision.model import Cluster, Node, NodeAdoption, Secret
from provision.workflow.plan import probe_and_plan

if TYPE_CHECKING:
    from provision.inventory.record import Addition


def plan_adopt(cluster: Cluster, nodes: Sequence[Node]) -> tuple[tuple[NodeAdoption, ...], tuple[Addition, ...]]:
    """Probe `nodes`; return the pre-existing configuration of each, and the additions to the files of the inventory."""
    from provision.inventory.record import additions
    from provision.planning.preservation import describe_preserved

    probed = probe_and_plan(cluster, nodes)
    adoptions: list[NodeAdoption] = []
    variables_by_node: dict[str, dict[str, Any]] = {}
    for plan in probed.plan.nodes:
        if plan.error or plan.name not in probed.facts:
            adoptions.append(NodeAdoption(plan.name, (), {}, plan.error, plan.remedy, plan.reachable, plan.error_code))
            continue
        preserved = probed.preserved.get(plan.name, {})
        variables_by_node[plan.name] = {
            name: value for variables in preserved.values() for name, value in variables.items()
        }
        adoptions.append(
            NodeAdoption(
                plan.name, describe_preserved(probed.facts[plan.name], preserved), variables_by_node[plan.name]
            )
        )
    return tuple(adoptions), additions(cluster, variables_by_node)


def adopt(cluster: Cluster, parts: Sequence[Addition], *, become_password: Secret | None = None) -> None:
    """Write the additions to the inventory.

    Raises:
        ProvisionError: the inventory cannot be written; it is unchanged.
    """
    from provision.inventory.record import record

    record(cluster, tuple(parts), become_password=become_password)
