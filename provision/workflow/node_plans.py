"""Plans of the nodes: the steps that each of them needs, from its probe result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from provision.checks.systems import unsupported
from provision.commands.python_install import INSTALLERS
from provision.components import SHARED
from provision.errors import ConnectionFailed, NodeError, ProvisionError
from provision.facts import NodeFacts, Unknown
from provision.facts.system import System
from provision.model import Cluster, Node, NodePlan, PackageChange, Step, StepClass
from provision.model.reason import reason
from provision.planning import (
    PlanScene,
    RoleSource,
    findings,
    plan_node,
    with_partners,
)
from provision.planning.ignore import with_ignored
from provision.planning.preservation import unreadable_facts
from provision.planning.stack_lock import lock_refusal
from provision.report.reasons import error_of, message
from provision.workflow.survey import supported_systems

if TYPE_CHECKING:
    from provision.workflow.plan_result import Request

_DEFAULT_PYTHON = ("python3", "/usr/bin/python3")
_PYTHON_STEP = Step(
    SHARED.role, StepClass.SAFE, (reason("plan.python_missing"),), packages=(PackageChange("python3", None),)
)


def plan_nodes(
    nodes: Sequence[Node],
    cluster: Cluster,
    probed: Mapping[str, NodeFacts | ProvisionError],
    asked: Request,
    sources: Mapping[str, RoleSource],
) -> tuple[tuple[NodePlan, ...], dict[str, NodeFacts], dict[str, ProvisionError]]:
    """Return the plans of `nodes`, the facts of those that can be worked on, and why the others cannot."""
    supported = supported_systems()
    errors = {
        name: why
        for name, value in probed.items()
        if (why := _unable(cluster.node(name), value, supported) or _refused(cluster.node(name), cluster, value))
    }
    facts = {
        name: value for name, value in probed.items() if name not in errors and not isinstance(value, ProvisionError)
    }
    without_python = {name for name in facts if lacks_python(cluster.node(name), facts[name])}
    facts = {name: value for name, value in facts.items() if name not in without_python}
    now = datetime.now().astimezone()
    only = frozenset((*asked.only, *asked.forced) if asked.only else ())
    forced = frozenset(asked.forced)
    scenes = {
        name: PlanScene(
            cluster.node(name),
            probed,
            cluster,
            facts,
            supported,
            sources,
            asked.disruptive,
            only,
            forced,
            asked.reboot,
            now,
        )
        for name, probed in facts.items()
    }
    plans = tuple(
        NodePlan(node.name, (_PYTHON_STEP,))
        if node.name in without_python
        else _plan_of(node, scenes.get(node.name), errors.get(node.name), asked)
        for node in nodes
    )
    return with_partners(plans, scenes), facts, errors


def lacks_python(node: Node, facts: NodeFacts) -> bool:
    """Return whether python3 has to be installed on the node before anything else can be probed there."""
    system = facts.system
    return not isinstance(system, Unknown) and not system.python3 and node.connection.python in _DEFAULT_PYTHON


def _plan_of(node: Node, scene: PlanScene | None, error: ProvisionError | None, asked: Request) -> NodePlan:
    """Return the plan of one node by itself."""
    if error or not scene:
        lost = isinstance(error, ConnectionFailed)
        if error is None:
            return NodePlan(node.name)
        return NodePlan(node.name, error=error.message, remedy=error.remedy, error_code=error.code, reachable=not lost)
    plan = NodePlan(node.name, plan_node(scene), findings=findings(scene))
    if asked.only:
        wanted = {*asked.only, *asked.forced}
        plan = replace(plan, steps=tuple(step for step in plan.steps if step.role in wanted))
    return with_ignored(plan, node, asked.forced, text=partial(message, node=node.name))


def _unable(node: Node, facts: NodeFacts | ProvisionError, supported: Mapping[str, str]) -> ProvisionError | None:
    """Return why Ansible could not work on the node at all; it would say less clearly why not."""
    if isinstance(facts, ProvisionError):
        return facts
    system = facts.system
    if isinstance(system, Unknown) or system.name not in supported:
        return _unsupported(node, system, supported)
    if lacks_python(node, facts):
        if system.package_manager in INSTALLERS:
            return None
        return NodeError(
            f"python3 is missing or incomplete on it ({system.title}), and Ansible needs one",
            node=node.name,
            remedy="Install the package python3 there with apt-get or dnf, or set ansible_python_interpreter.",
        )
    unseen = next((fact for fact in (facts.receipts, facts.managed) if isinstance(fact, Unknown)), None)
    if unseen:
        return _unreadable_node(node, unseen.reason)
    others = unreadable_facts(node, facts)
    return _unreadable_node(node, f"the pre-existing configuration is unknown ({others})") if others else None


def _refused(node: Node, cluster: Cluster, facts: NodeFacts | ProvisionError) -> ProvisionError | None:
    """Return why the node cannot be brought to the stack lock."""
    why = None if isinstance(facts, ProvisionError) else lock_refusal(node, cluster, facts)
    return error_of(NodeError, why, node=node.name) if why else None


def _unsupported(node: Node, system: System | Unknown, supported: Mapping[str, str]) -> ProvisionError:
    if isinstance(system, Unknown):
        return error_of(NodeError, reason("node.os.unknown", supported=tuple(supported)), node=node.name)
    return error_of(NodeError, unsupported(system, supported), node=node.name)


def _unreadable_node(node: Node, reason: str) -> NodeError:
    return NodeError(
        f"its managed state cannot be read, so no steps can be planned: {reason}",
        node=node.name,
        remedy="Log in to the node; check /var/lib/provision and processes that hang (ps axf).",
    )
