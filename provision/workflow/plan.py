"""One look at the nodes, and what would have to be done there."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.errors import ConnectionFailed, NodeError, ProvisionError, UsageError
from provision.facts import Unknown
from provision.frozen import dataclass
from provision.model import Cluster, Node, NodePlan, Plan, Step, StepClass
from provision.workflow.sources import role_sources
from provision.workflow.survey import keeping, probe, supported_systems, with_defaults

if TYPE_CHECKING:
    from provision.facts import NodeFacts
    from provision.planning import PlanScene, RoleSource

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
    kept: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """What others set up and the inventory does not mention: node -> role -> variables that keep it."""

    def provisioned(self, name: str) -> bool:
        """Return whether every role that is enabled on the node has left a receipt there."""
        from provision.planning import ROLES

        receipts, variables = self.facts[name].receipts, self.cluster.node(name).variables
        wanted = [role for role in ROLES if variables.get(f"{role}_enabled") is not False]
        return not isinstance(receipts, Unknown) and all(role in receipts for role in wanted)

    def digests(self) -> dict[str, str]:
        """Return for each node a hash of what its plan rests on."""
        return {node.name: _digest(node, self.facts.get(node.name)) for node in self.plan.nodes}


def look(cluster: Cluster, nodes: Sequence[Node], request: Request | None = None, *, read_only: bool = False) -> Look:
    """Look at `nodes`, all at once and in one SSH session each, and plan.

    With `read_only` nothing at all is written on a node; the look takes longer then.
    """
    from provision import planning

    asked, started = request or Request(), time.monotonic()
    complete = with_defaults(cluster)
    wanted = [complete.node(node.name) for node in nodes]
    took: dict[str, float] = {}
    found = probe(wanted, names=[node.name for node in complete.nodes], read_only=read_only, took=took)
    complete, kept = keeping(cluster, complete, found)
    wanted = [complete.node(node.name) for node in nodes]
    supported = supported_systems()
    errors = {name: why for name, value in found.items() if (why := _unable(complete.node(name), value, supported))}
    facts = {
        name: value for name, value in found.items() if name not in errors and not isinstance(value, ProvisionError)
    }
    sources, now = role_sources(), datetime.now().astimezone()
    only = frozenset((*asked.only, *asked.forced) if asked.only else ())
    scenes = {
        name: planning.PlanScene(
            complete.node(name), found, complete, facts, supported, sources, asked.disruptive, only, now
        )
        for name, found in facts.items()
    }
    plans = tuple(_plan_of(node, scenes.get(node.name), errors.get(node.name), asked) for node in wanted)
    partners = planning.with_partners(plans, scenes)
    plan = Plan(
        tuple(replace(node, seconds=took.get(node.name), kept=_told(kept.get(node.name, {}))) for node in partners)
    )
    return Look(complete, plan, facts, errors, sources, time.monotonic() - started, kept)


def _told(kept: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, json.dumps(value)) for variables in kept.values() for name, value in variables.items())


def _plan_of(node: Node, scene: PlanScene | None, error: ProvisionError | None, asked: Request) -> NodePlan:
    """Return the plan of one node by itself."""
    from provision import planning
    from provision.planning.ignore import with_ignored

    if error or not scene:
        lost = isinstance(error, ConnectionFailed)
        text, remedy = (error.message, error.remedy) if error else (None, None)
        return NodePlan(node.name, error=text, remedy=remedy, reachable=not lost)
    plan = NodePlan(node.name, planning.plan_node(scene), findings=planning.findings(scene))
    if asked.only:
        wanted = {*asked.only, *asked.forced}
        plan = replace(plan, steps=tuple(step for step in plan.steps if step.role in wanted))
    plan = with_ignored(plan, node, asked.forced)
    steps = {step.role: step for step in plan.steps}
    for role in asked.forced:
        if scene.enabled(role):
            steps.setdefault(role, Step(role, StepClass.NEEDS_IDLE, ("asked for by --force",), _waits(role, scene)))
    return replace(plan, steps=tuple(sorted(steps.values(), key=lambda step: planning.ROLES.index(step.role))))


def _unable(node: Node, found: NodeFacts | ProvisionError, supported: Sequence[str]) -> ProvisionError | None:
    """Return why Ansible could not work on the node at all; it would say less clearly why not."""
    from provision.planning.standing import unseen as unseen_of_others

    if isinstance(found, ProvisionError):
        return found
    system = found.system
    title = "an unknown system without /etc/os-release" if isinstance(system, Unknown) else system.title
    if isinstance(system, Unknown) or f"{system.id} {system.version}" not in supported:
        return NodeError(
            f"it runs {title}, which is not supported; supported are: {', '.join(supported)}",
            node=node.name,
            remedy="Install a supported system, or add a file for this one under roles/platform/vars.",
        )
    if not system.python3 and not node.variables.get("ansible_python_interpreter"):
        return NodeError(
            f"there is no python3 on it ({title}), and Ansible needs one",
            node=node.name,
            remedy="Install it there (Debian: apt-get install python3), or set ansible_python_interpreter.",
        )
    unseen = next((fact for fact in (found.receipts, found.managed) if isinstance(fact, Unknown)), None)
    if unseen:
        return _blind(node, unseen.reason)
    others = unseen_of_others(node, found)
    return _blind(node, f"what others set up cannot be told ({others})") if others else None


def _blind(node: Node, reason: str) -> NodeError:
    return NodeError(
        f"what is managed there cannot be seen, and so nothing can be planned: {reason}",
        node=node.name,
        remedy="Log in to the node and look at /var/lib/provision and at what hangs (ps axf).",
    )


def _waits(role: str, scene: PlanScene) -> tuple[str, ...]:
    """Return the jobs that a role waits for that is run without a reason."""
    from provision.planning import Cause, CauseKind, step_class, waiting

    causes = (Cause(CauseKind.RECEIPT, "", ""),)
    return waiting(scene, {role: step_class(role, causes, scene)}, {role: causes}).get(role, ())


def _digest(plan: NodePlan, facts: NodeFacts | None) -> str:
    """Return a hash of the plan and of the facts that a step's outcome depends on, none of which changes by itself."""
    seen: dict[str, Any] = {"plan": repr(replace(plan, seconds=None))}
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


def read_saved(path: Path) -> tuple[dict[str, Any], Request]:
    """Return a saved plan and what was asked for then.

    Raises:
        UsageError: it cannot be read, or is no plan of ours.
    """
    remedy = "Make one: provision plan --out FILE"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        request = Request(tuple(document["only"]), tuple(document["forced"]), frozenset(document["disruptive"]))
        right = document["format"] == _FORMAT and isinstance(document["digests"], dict) and "inventory" in document
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", remedy=remedy) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path} is not a saved plan", remedy=remedy) from error
    if not right:
        raise UsageError(f"{path} is a plan of another version of this program", remedy=remedy)
    return document, request


def saved_differences(document: Mapping[str, Any], found: Look) -> list[str]:
    """Return what is not as it was when the plan was saved, a line for each; empty: the plan still holds."""
    lines: list[str] = []
    if document["inventory"] != str(found.cluster.inventory):
        lines.append(f"it was made for {document['inventory']}")
    before, now = document["digests"], found.digests()
    lines += [
        f"{name}: what it rests on has changed since" for name in now if name in before and before[name] != now[name]
    ]
    lines += [f"{name}: was not planned then" for name in now if name not in before]
    lines += [f"{name}: was planned then, and is not asked for now" for name in before if name not in now]
    return lines
