"""What nodes need of each other: keys and addresses go from node to node only between those that a run takes in.

A node that is left out of a run stays known by its recorded key and address. So others have to take part only where
that is not enough: a node's own keys or address may change, or it has lost what it knew of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from provision.facts import data_address, plain, running_container
from provision.facts.container_ssh import ContainerSsh, ContainerTrust
from provision.model import NodePlan, Same, Step, StepClass
from provision.planning.causes import Cause, CauseKind
from provision.planning.scene import ROLES, PlanScene
from provision.planning.steps import causes_of, waiting

__all__ = ["with_partners"]

_SHOWN = 3
_SSH, _HOSTS = "container_ssh", "base_system"
_KNOWN_KEYS = ("/known_hosts", "/authorized_keys")
_LEARNS_KEYS = frozenset({"container_ssh.known_hosts", "container_ssh.trusted_nodes"})
_OWN_CHANGE = frozenset({CauseKind.RECEIPT, CauseKind.CODE, CauseKind.VARIABLE})
"""The role runs as a whole, or with another port: whether the keys stay is not known before."""


def with_partners(plans: Sequence[NodePlan], scenes: Mapping[str, PlanScene]) -> tuple[NodePlan, ...]:
    """Return the plans with the steps that nodes need because of each other's; `scenes` has each planned node's.

    What waits for jobs to end asks nobody yet.
    """
    changing, learning, lost = [], [], []
    for plan in plans:
        now = {step.role for step in plan.steps if not step.waits_for}
        if plan.name not in scenes or not now & {_SSH, _HOSTS}:
            continue
        scene = scenes[plan.name]
        causes = causes_of(scene)
        if _SSH in now and _keys_change(scene, causes.get(_SSH, ())):
            changing.append(plan.name)
        elif _SSH in now and any(_is_of_others(cause) for cause in causes.get(_SSH, ())):
            learning.append(plan.name)
        if _HOSTS in now and any(cause.name == "base_system.hosts" for cause in causes.get(_HOSTS, ())):
            lost.append(plan.name)
    return tuple(
        _joined(plan, scenes[plan.name], _asked(plan.name, changing, learning, lost, scenes[plan.name]))
        if plan.name in scenes and not plan.error and plan.reachable
        else plan
        for plan in plans
    )


def _keys_change(scene: PlanScene, causes: Sequence[Cause]) -> bool:
    """Return whether the keys or the address by which others know the node may be others afterwards."""
    ssh, trust = scene.facts.container_ssh, scene.facts.container_trust
    if not isinstance(ssh, ContainerSsh) or not ssh.host_key or not ssh.client_key:
        return True
    if not isinstance(trust, ContainerTrust):
        return True
    if any(cause.kind in _OWN_CHANGE or cause.name == "container_ssh.host_key" for cause in causes):
        return True
    address = data_address(scene.node.variables, scene.facts)
    return address is not None and address not in _known_places(Same(trust))


@lru_cache(maxsize=8)
def _known_places(trust: Same[ContainerTrust]) -> frozenset[str]:
    """Return the names and addresses of known_hosts, without ports."""
    return frozenset(name.partition("]:")[0].removeprefix("[") for name in trust.it.known_hosts)


def _is_of_others(cause: Cause) -> bool:
    return cause.name in _LEARNS_KEYS or (cause.kind is CauseKind.FILE and cause.name.endswith(_KNOWN_KEYS))


def _asked(
    name: str, changing: Sequence[str], learning: Sequence[str], lost: Sequence[str], scene: PlanScene
) -> dict[str, str]:
    """Return what other nodes ask of this one: role -> reason."""
    asked: dict[str, str] = {}
    others = [other for other in changing if other != name]
    if others:
        asked[_SSH] = f"{_of(others)} keys may change, and all nodes know them"
    elif others := [other for other in learning if other != name]:
        asked[_SSH] = f"{_list(others)} {_has(others)} to learn the keys of all nodes"
    others = [other for other in lost if other != name]
    if others and not _address_is_said(scene):
        asked[_HOSTS] = f"{_list(others)} {_has(others)} to learn this node's address, which the inventory does not say"
    return asked


def _address_is_said(scene: PlanScene) -> bool:
    said = scene.node.variables.get("cluster_data_address")
    return bool(said) and plain(said)


def _joined(plan: NodePlan, scene: PlanScene, asked: Mapping[str, str]) -> NodePlan:
    """Return the plan with the steps that are asked of the node and that it does not have."""
    there = {step.role for step in plan.steps}
    new = {role: reason for role, reason in asked.items() if role not in there and scene.enabled(role)}
    if _SSH in new and not running_container(scene.facts) and "training_container" not in there:
        del new[_SSH]  # there is nothing to make or to take keys in
    if not new:
        return plan
    classes = {step.role: step.step_class for step in plan.steps} | dict.fromkeys(new, StepClass.SAFE)
    allowed = plan.name in scene.disruptive
    waits = {} if allowed else waiting(scene, classes, {_SSH: (Cause(CauseKind.PARTNER, _SSH, ""),)})
    added = [Step(role, StepClass.SAFE, (reason,), waits.get(role, ())) for role, reason in new.items()]
    steps = sorted((*plan.steps, *added), key=lambda step: ROLES.index(step.role))
    return replace(plan, steps=tuple(steps))


def _of(names: Sequence[str]) -> str:
    return f"{names[0]}'s" if len(names) == 1 else f"the nodes' ({_list(names)})"


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _list(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    more = len(names) - _SHOWN
    return f"{', '.join(names[:_SHOWN])} and {more} more" if more > 0 else f"{', '.join(names[:-1])} and {names[-1]}"
