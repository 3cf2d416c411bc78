"""One look at the nodes, and what would have to be done there."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.documents import decode
from provision.documents.state import SavedPlan
from provision.errors import InvalidDocument, ProvisionError, UsageError
from provision.model import Cluster, Node, NodePlan, Plan
from provision.workflow.survey import keeping, probe, with_defaults

if TYPE_CHECKING:
    from provision.facts import NodeFacts
    from provision.planning import RoleSource

__all__ = ["Look", "Request", "look", "read_saved", "save", "saved_differences"]

_FORMAT = 1
"""Of a saved plan; another one is refused."""


@dataclass(frozen=True)
class Request:
    """What the operator asks for, beyond what the inventory wants."""

    only: tuple[str, ...] = ()
    """Roles; the plan is cut to them. Empty: all."""
    forced: tuple[str, ...] = ()
    """Roles that run whether there is a reason or not."""
    disruptive: frozenset[str] = frozenset()
    """Nodes where running jobs may be disturbed."""


@dataclass(frozen=True)
class Look:
    """What a look at the nodes showed, and the plan that follows."""

    cluster: Cluster
    """With the roles' defaults, and what is kept."""
    plan: Plan
    facts: Mapping[str, NodeFacts]
    """Of the nodes that were reached and can be worked on."""
    errors: Mapping[str, ProvisionError]
    """Of all others."""
    sources: Mapping[str, RoleSource] = field(default_factory=dict)
    seconds: float = 0.0
    """How long the look took."""
    stated: Cluster | None = None
    """As the inventory has it, without the roles' defaults."""
    kept: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """What others set up and the inventory does not mention: node -> role -> variables that keep it."""

    def provisioned(self, name: str) -> bool:
        """Return whether every role that is enabled on the node has left a receipt there."""
        from provision.components import ROLES
        from provision.facts import Unknown

        facts, variables = self.facts.get(name), self.cluster.node(name).variables
        wanted = [role for role in ROLES if variables.get(f"{role}_enabled") is not False]
        if facts is None or isinstance(facts.receipts, Unknown):
            return False
        receipts = facts.receipts
        return all(role in receipts for role in wanted)

    def digests(self) -> dict[str, str]:
        """Return for each node a hash of what its plan rests on."""
        return {node.name: _digest(node, self.facts.get(node.name)) for node in self.plan.nodes}


def look(
    cluster: Cluster,
    nodes: Sequence[Node],
    request: Request | None = None,
    *,
    read_only: bool = False,
    meanwhile: Callable[[], None] | None = None,
) -> Look:
    """Look at `nodes`, all at once and in one SSH session each, and plan.

    With `read_only` nothing at all is written on a node; the look takes longer then. `meanwhile` is called once while
    the nodes are at work.
    """
    asked, started = request or Request(), time.monotonic()
    complete = with_defaults(cluster)
    wanted = [complete.node(node.name) for node in nodes]
    took: dict[str, float] = {}

    @cache
    def sources() -> dict[str, RoleSource]:
        from provision.workflow.sources import role_sources

        return role_sources()

    def while_they_work() -> None:
        import provision.workflow.node_plans  # noqa: F401 - with all that planning is made of

        sources()
        if meanwhile is not None:
            meanwhile()

    names = [node.name for node in complete.nodes]
    found = probe(wanted, names=names, read_only=read_only, took=took, meanwhile=while_they_work)
    complete, kept = keeping(cluster, complete, found)
    from provision.workflow.node_plans import plan_nodes

    wanted = [complete.node(node.name) for node in nodes]
    plans, facts, errors = plan_nodes(wanted, complete, found, asked, sources())
    plan = Plan(
        tuple(replace(node, seconds=took.get(node.name), kept=_told(kept.get(node.name, {}))) for node in plans)
    )
    return Look(complete, plan, facts, errors, sources(), time.monotonic() - started, cluster, kept)


def _told(kept: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, json.dumps(value)) for variables in kept.values() for name, value in variables.items())


def _digest(plan: NodePlan, facts: NodeFacts | None) -> str:
    """Return a hash of the plan and of the facts that a step's outcome depends on, none of which changes by itself."""
    from provision.facts import Unknown

    bare = replace(
        plan,
        seconds=None,
        steps=tuple(replace(step, packages=(), files=()) for step in plan.steps),
        problems=(),
        dependencies=(),
    )
    seen: dict[str, Any] = {"plan": repr(bare)}
    if facts is not None:
        boot = facts.boot
        seen |= {
            "boot": None if isinstance(boot, Unknown) else boot.boot_id,
            "system": repr(facts.system),
            "managed": repr(facts.managed),
            "receipts": repr(facts.receipts),
        }
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()[:32]


def save(found: Look, path: Path, request: Request) -> None:
    """Write the plan to `path` for ``apply --plan``; only the operator reads it.

    Raises:
        ProvisionError: the file cannot be written.
    """
    from provision.report.plan_report import as_document

    document = {
        "format": _FORMAT,
        "inventory": str(found.cluster.inventory),
        "only": list(request.only),
        "forced": list(request.forced),
        "disruptive": sorted(request.disruptive),
        "digests": found.digests(),
        "plan": as_document(found.plan),
    }
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        # In /tmp anybody could have put a file or a link there beforehand.
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(json.dumps(document, indent=2) + "\n")
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise ProvisionError(
            f"the plan could not be written to {path}: {error.strerror}", remedy="Name a file that can be written."
        ) from error


def read_saved(path: Path) -> tuple[SavedPlan, Request]:
    """Return a saved plan and what was asked for then.

    Raises:
        UsageError: it cannot be read, or is no plan of ours.
    """
    remedy = "Make one: provision plan --out FILE"
    try:
        document = decode(path.read_bytes(), SavedPlan, node="", what="saved plan")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", remedy=remedy) from error
    except InvalidDocument as error:
        raise UsageError(f"{path} is not a saved plan", remedy=remedy) from error
    if document.format != _FORMAT:
        raise UsageError(f"{path} is a plan of another version of this program", remedy=remedy)
    return document, Request(tuple(document.only), tuple(document.forced), frozenset(document.disruptive))


def saved_differences(document: SavedPlan, found: Look) -> list[str]:
    """Return what is not as it was when the plan was saved, a line for each; empty: the plan still holds."""
    lines: list[str] = []
    if document.inventory != str(found.cluster.inventory):
        lines.append(f"it was made for {document.inventory}")
    before, now = document.digests, found.digests()
    lines += [
        f"{name}: what it rests on has changed since" for name in now if name in before and before[name] != now[name]
    ]
    lines += [f"{name}: was not planned then" for name in now if name not in before]
    lines += [f"{name}: was planned then, and is not asked for now" for name in before if name not in now]
    return lines
