"""Reload of the peer memory module, as at boot."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from provision.errors import ConnectionFailed, ProvisionError
from provision.model import NodeReload, ReloadResult
from provision.model.reason import reason
from provision.workflow.inventory_state import inventory_lock
from provision.workflow.survey import ask, chosen, with_defaults

if TYPE_CHECKING:
    from provision.connectors.base import Connector
    from provision.model import Cluster, Node

_COMMAND = "provision reload"


def reload(
    cluster: Cluster, limit: str | None = None, *, on_warning: Callable[[str], None] | None = None
) -> tuple[NodeReload, ...]:
    """Reload the peer memory module on the nodes in parallel. Busy nodes are not changed.

    Raises:
        LockedError: Another process changes the inventory's nodes, or one of these nodes. No node was changed.
    """
    from provision.components import MODULE_LOADER
    from provision.connectors import each
    from provision.workflow import node_locks

    nodes = chosen(with_defaults(cluster), limit)
    on = {node.name: node for node in nodes if node.variables.get(f"{MODULE_LOADER.role}_enabled") is not False}
    with (
        inventory_lock(cluster, "reload") as warnings,
        node_locks.acquire(list(on.values()), command=_COMMAND) as locks,
    ):
        node_locks.raise_refusals(locks.refused)
        locked = [node for node in on.values() if node.name not in locks.failed]
        results = locks.failed | each(locked, lambda connector: _one(connector, on[connector.name]))
        done = tuple(_result(node, results.get(node.name)) for node in nodes)
        for result in done:
            locks.finish(result.name, {"status": result.result.value, "roles": [], "message": ""})
    if on_warning:
        for warning in (*warnings, *(f"{name}: {text}" for name, text in locks.warnings.items())):
            on_warning(warning)
    return done


def _one(connector: Connector, node: Node) -> NodeReload:
    from provision import facts
    from provision.checks.reload import FACTS, RELOAD_SECONDS, read_reload
    from provision.connectors.programs import run_program

    result = run_program(connector, "reload", timeout=RELOAD_SECONDS)
    try:
        probed = facts.parse(ask(connector, FACTS, facts.Parameters()).stdout, FACTS)
    except ProvisionError as error:
        return read_reload(node, result, error)
    return read_reload(node, result, probed)


def _result(node: Node, result: NodeReload | ProvisionError | None) -> NodeReload:
    from provision.components import MODULE_LOADER

    if result is None:
        return NodeReload(node.name, ReloadResult.SKIPPED, reason("check.role_disabled", role=MODULE_LOADER.role))
    if isinstance(result, ConnectionFailed):
        why = reason("reload.unreachable", cause=result.message, advice=result.remedy)
        return NodeReload(node.name, ReloadResult.UNREACHABLE, why)
    if isinstance(result, ProvisionError):
        why = reason("reload.not_started", cause=result.message, advice=result.remedy)
        return NodeReload(node.name, ReloadResult.FAILED, why)
    return result
