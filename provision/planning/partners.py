"""Steps that nodes require because of each other: only the nodes of a run exchange keys and addresses.

Other nodes have the recorded keys and addresses of nodes outside of the run. They have to take part only if these do
not suffice: a node's keys or address may change, or the node has lost those of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from provision.components import COMPONENTS, ROLES
from provision.model import NodePlan, Step, StepClass
from provision.model.cause import Cause, CauseKind
from provision.model.reason import Reason
from provision.planning.scene import PlanScene
from provision.planning.steps import causes_of, waiting

_EXCHANGES = {role: component.exchange for role, component in COMPONENTS.items() if component.exchange}

_Requests = dict[str, dict[str, list[str]]]
"""Role -> kind of request -> the nodes that make it."""


def with_partners(plans: Sequence[NodePlan], scenes: Mapping[str, PlanScene]) -> tuple[NodePlan, ...]:
    """Return the plans with the steps that nodes need because of each other's; `scenes` has each planned node's."""
    requests = _requests(plans, scenes)
    return tuple(
        _with_requested(plan, scenes[plan.name], requests)
        if plan.name in scenes and not plan.error and plan.reachable
        else plan
        for plan in plans
    )


def _requests(plans: Sequence[NodePlan], scenes: Mapping[str, PlanScene]) -> _Requests:
    """A step that waits for jobs to end makes no request yet."""
    requests: _Requests = {role: {} for role in _EXCHANGES}
    for plan in plans:
        roles = {step.role for step in plan.steps if not step.waits_for} & _EXCHANGES.keys()
        if plan.name not in scenes or not roles:
            continue
        causes = causes_of(scenes[plan.name])
        for role in roles:
            kind = _EXCHANGES[role].request(causes.get(role, ()), scenes[plan.name])
            if kind:
                requests[role].setdefault(kind, []).append(plan.name)
    return requests


def _with_requested(plan: NodePlan, scene: PlanScene, requests: _Requests) -> NodePlan:
    """Return the plan with the steps that other nodes request and that it does not have."""
    roles = {step.role for step in plan.steps}
    reasons: dict[str, Reason] = {}
    for role, exchange in _EXCHANGES.items():
        others = {kind: [name for name in names if name != plan.name] for kind, names in requests[role].items()}
        why = exchange.reason(others, scene)
        if why and role not in roles and scene.enabled(role) and exchange.possible(scene, roles):
            reasons[role] = why
    if not reasons:
        return plan
    classes = {step.role: step.step_class for step in plan.steps} | dict.fromkeys(reasons, StepClass.SAFE)
    causes = {role: (Cause(CauseKind.PARTNER, role, why),) for role, why in reasons.items()}
    waits = {} if plan.name in scene.disruptive else waiting(scene, classes, causes)
    added = [Step(role, StepClass.SAFE, (why,), waits.get(role, ())) for role, why in reasons.items()]
    steps = sorted((*plan.steps, *added), key=lambda step: ROLES.index(step.role))
    return replace(plan, steps=tuple(steps))
