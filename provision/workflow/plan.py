"""Probe the nodes once, and plan the necessary steps."""

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
from provision.workflow.plan_result import PlanResult, Request
from provision.workflow.survey import probe, with_defaults, with_preserved

if TYPE_CHECKING:
    from provision.planning import RoleSource

__all__ = ["PlanResult", "Request", "probe_and_plan", "read_saved", "save", "saved_differences"]

_FORMAT = 1
"""Of a saved plan; another one is refused."""


def probe_and_plan(
    cluster: Cluster,
    nodes: Sequence[Node],
    request: Request | None = None,
    *,
    read_only: bool = False,
    meanwhile: Callable[[], None] | None = None,
) -> PlanResult:
    """Probe all `nodes` in parallel, one SSH session each, and plan.

    With `read_only` nothing is written on a node. `meanwhile` is called once while the nodes work.
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
    probed = probe(wanted, names=names, read_only=read_only, took=took, meanwhile=while_they_work)
    complete, preserved = with_preserved(cluster, complete, probed)
    from provision.workflow.node_plans import plan_nodes

    wanted = [complete.node(node.name) for node in nodes]
    plans, facts, errors = plan_nodes(wanted, complete, probed, asked, sources())
    plan = Plan(
        tuple(
            replace(node, seconds=took.get(node.name), preserved=_as_text(preserved.get(node.name, {})))
            for node in plans
        )
    )
    return PlanResult(complete, plan, facts, errors, sources(), time.monotonic() - started, cluster, preserved)


def _as_text(preserved: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, json.dumps(value)) for variables in preserved.values() for name, value in variables.items())


def save(result: PlanResult, path: Path, request: Request) -> None:
    """Write the plan to `path` for ``apply --plan``; only the operator reads it.

    Raises:
        ProvisionError: the file cannot be written.
    """
    from provision.report.plan_report import as_document

    document = {
        "format": _FORMAT,
        "inventory": str(result.cluster.inventory),
        "only": list(request.only),
        "forced": list(request.forced),
        "disruptive": sorted(request.disruptive),
        "reboot": request.reboot,
        "digests": result.digests(),
        "plan": as_document(result.plan),
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
    return document, Request(
        tuple(document.only), tuple(document.forced), frozenset(document.disruptive), document.reboot
    )


def saved_differences(document: SavedPlan, result: PlanResult) -> list[str]:
    """Return the differences from the time when the plan was saved, one per line; empty if the plan is valid."""
    lines: list[str] = []
    before, now = document.digests, result.digests()
    lines += [
        f"{name}: its inputs changed since the plan was saved"
        for name in now
        if name in before and before[name] != now[name]
    ]
    lines += [f"{name}: is not in the saved plan" for name in now if name not in before]
    lines += [f"{name}: is in the saved plan but not selected now" for name in before if name not in now]
    return lines
