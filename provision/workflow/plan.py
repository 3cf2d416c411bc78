"""One look at the nodes, and what would have to be done there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.documents import decode
from provision.documents.state import SavedPlan
from provision.errors import InvalidDocument, ProvisionError, UsageError
from provision.local_files import write_private
from provision.model import Cluster, Node, Plan
from provision.workflow.plan_result import Look, Request
from provision.workflow.survey import keeping, probe, with_defaults

if TYPE_CHECKING:
    from provision.planning import RoleSource

__all__ = ["Look", "Request", "look", "read_saved", "save", "saved_differences"]

_FORMAT = 1
"""Of a saved plan; another one is refused."""


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
        tuple(replace(node, seconds=took.get(node.name), preserved=_told(kept.get(node.name, {}))) for node in plans)
    )
    return Look(complete, plan, facts, errors, sources(), time.monotonic() - started, cluster, kept)


def _told(kept: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, json.dumps(value)) for variables in kept.values() for name, value in variables.items())


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
    try:
        write_private(path, json.dumps(document, indent=2) + "\n")
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
