"""What the stack lock adds to a plan: causes of steps, and the reason for which a node is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from provision.commands.package_holds import HOLDS
from provision.components import SHARED
from provision.facts import NodeFacts, Unknown
from provision.model import Cluster, Node
from provision.model.cause import Cause, CauseKind
from provision.model.reason import Reason, reason
from provision.model.stack import Stack
from provision.stack.compare import Deviation, deviations, holds_versions, locked_packages

LOCK_CHECK = "node.stack_lock"
"""The check that reports all differences from the lock. In a plan each is a cause or a finding of its own."""
_VERSIONS = "versions"
"""The key of the held versions in the receipt of the shared role."""


def lock_causes(
    node: Node, lock: Stack | None, results: Iterable[Deviation], facts: NodeFacts
) -> dict[str, tuple[Cause, ...]]:
    """Return role -> why it has to run for the lock."""
    causes: dict[str, tuple[Cause, ...]] = {}
    for one in results:
        if one.role:
            kind = CauseKind.IMAGE if one.component == "image" else CauseKind.PACKAGE
            causes[one.role] = (*causes.get(one.role, ()), Cause(kind, one.component, one.why))
    versions = lock.versions if lock and node.takes_jobs else {}
    if holds_versions(facts) and not _are_held(versions, facts):
        why = reason("plan.not_held") if versions else reason("plan.held")
        causes[SHARED.role] = (Cause(CauseKind.FILE, HOLDS, why),)
    return causes


def _are_held(versions: Mapping[str, str], facts: NodeFacts) -> bool:
    """Return whether the node holds exactly these versions, by the receipt of the shared role.

    Without a receipt, the role runs anyway. After a run of plain Ansible, the receipt has the file and no versions.
    """
    if isinstance(facts.receipts, Unknown) or SHARED.role not in facts.receipts:
        return True
    content = facts.receipts[SHARED.role].content
    inputs, files = (_mapping(content.get(name)) for name in ("inputs", "files"))
    return _mapping(inputs.get(_VERSIONS)) == versions and (bool(versions) or HOLDS not in files)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def lock_refusal(node: Node, cluster: Cluster, facts: NodeFacts) -> Reason | None:
    """Return why the node cannot be brought to the lock; None if it can, or there is none."""
    lock = cluster.stack_lock
    if lock is None or not node.takes_jobs:
        return None
    return next((one.why for one in deviations(lock, node.variables, facts) if one.refused), None)


def locked_on(node: Node, cluster: Cluster, facts: NodeFacts) -> dict[str, dict[str, str]]:
    """Return role -> package -> version that the roles install on the node; nothing where they cannot."""
    lock = cluster.stack_lock
    return locked_packages(lock) if lock and node.takes_jobs and holds_versions(facts) else {}


def lock_variables(cluster: Cluster) -> dict[str, Any]:
    """Return what the roles get of the lock: role -> package -> version, and the digest of the image."""
    lock = cluster.stack_lock
    if lock is None:
        return {"packages": {}, "image": ""}
    return {"packages": locked_packages(lock), "image": lock.version("image")}
