"""Loading the peer-memory module by hand, as the nodes do at boot."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from provision.errors import ProvisionError
from provision.model import NodeReload, ReloadResult
from provision.model.reason import reason
from provision.workflow.inventory_state import alone
from provision.workflow.survey import ask, chosen, interpreter, with_defaults

if TYPE_CHECKING:
    from provision.connectors.base import Connector
    from provision.model import Cluster, Node


def reload(
    cluster: Cluster, limit: str | None = None, *, on_warning: Callable[[str], None] | None = None
) -> tuple[NodeReload, ...]:
    """Load the peer-memory module again on the nodes, all at once; a busy node is left alone.

    Raises:
        LockedError: an apply or a reload of this inventory is under way; the message says whose.
    """
    from provision.components import MODULE_LOADER
    from provision.connectors import each

    nodes = chosen(with_defaults(cluster), limit)
    on = {node.name: node for node in nodes if node.variables.get(f"{MODULE_LOADER.role}_enabled") is not False}
    with alone(cluster, "reload") as warnings:
        for warning in warnings:
            if on_warning:
                on_warning(warning)
        results = each(list(on.values()), lambda connector: _one(connector, on[connector.name]))
    return tuple(_result(node, results.get(node.name)) for node in nodes)


def _one(connector: Connector, node: Node) -> NodeReload:
    from provision import facts
    from provision.checks.reload import FACTS, RELOAD_SECONDS, read_reload
    from provision.connectors.programs import run_program

    python = interpreter(node.variables)
    result = run_program(connector, "reload", timeout=RELOAD_SECONDS, python=python)
    probed = ask(connector, FACTS, facts.Parameters(), python=python)
    return read_reload(node, result, facts.parse(probed.stdout, FACTS))


def _result(node: Node, result: NodeReload | ProvisionError | None) -> NodeReload:
    from provision.components import MODULE_LOADER

    if result is None:
        return NodeReload(node.name, ReloadResult.SKIPPED, reason("check.role_disabled", role=MODULE_LOADER.role))
    if isinstance(result, ProvisionError):
        return NodeReload(
            node.name,
            ReloadResult.UNREACHABLE,
            reason("reload.unreachable", cause=result.message, advice=result.remedy),
        )
    return result
