"""Which roles have to run on a node, in which order, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta

from provision.components import COMPONENTS
from provision.components.common import is_whole_run
from provision.facts import Unknown
from provision.facts.managed import Managed
from provision.facts.system import Boot
from provision.model import NEVER_APPLIED, CheckResult, CheckStatus, Step, StepClass
from provision.model.cause import Cause, CauseKind, shown
from provision.planning.differences import differences
from provision.planning.fingerprint import changed, fingerprint, salt_of
from provision.planning.remediation import is_fixable
from provision.planning.scene import PlanScene

__all__ = ["blind", "causes_of", "findings", "plan_node", "step_class", "waiting"]

_DAY = timedelta(days=1)


def plan_node(scene: PlanScene) -> tuple[Step, ...]:
    """Return the roles that have to run on the node, in the order of ``site.yml``, each with its reasons."""
    causes = causes_of(scene)
    classes = {role: step_class(role, found, scene) for role, found in causes.items()}
    late = waiting(scene, classes, causes)
    allowed = scene.node.name in scene.disruptive
    return tuple(
        Step(
            role,
            classes[role],
            _reasons(role, found, classes[role], scene),
            waits_for=() if allowed else late.get(role, ()),
            disturbs=late.get(role, ()) if allowed and classes[role] is not StepClass.SAFE else (),
        )
        for role, found in causes.items()
    )


def _reasons(role: str, causes: Sequence[Cause], what: StepClass, scene: PlanScene) -> tuple[str, ...]:
    """Return the causes' reasons; of a disruptive run of the whole role also what it disrupts."""
    more = COMPONENTS[role].disruptions(scene) if is_whole_run(causes) and what is not StepClass.SAFE else ()
    return tuple(dict.fromkeys((*(cause.reason for cause in causes), *more)))


def step_class(role: str, causes: Sequence[Cause], scene: PlanScene) -> StepClass:
    """Return the class of a role's step from its causes.

    A step is disruptive when it can disrupt a job: a restart of docker, reloaded modules or links, a new container. A
    changed role has the class of the worst that it can do: on an idle node that costs nothing, and on a busy node
    waiting costs less than a job. Without a valid receipt the role runs as a whole, and the facts decide: on a node
    whose pre-existing configuration is preserved, a first run disrupts nothing.
    """
    return StepClass.NEEDS_IDLE if COMPONENTS[role].is_disruptive(causes, scene) else StepClass.SAFE


def findings(scene: PlanScene) -> tuple[str, ...]:
    """Return what is wrong on the node and no apply mends, with what to do, and what could not be seen."""
    found = [
        _finding(scene, check)
        for check in scene.failing
        if check.status is CheckStatus.FAIL and not is_fixable(scene, check)
    ]
    return (*found, *_unseen(scene))


def _finding(scene: PlanScene, check: CheckResult) -> str:
    """A remedy that names the node is left out: nodes of which there is the same to tell are told of together."""
    told = f"{check.id}: {check.reason}"
    named = check.remedy and re.search(rf"(?<![\w.-]){re.escape(scene.node.name)}(?![\w.-])", check.remedy)
    return told if not check.remedy or named else f"{told.rstrip('.')}. {check.remedy}"


def blind(scene: PlanScene) -> str | None:
    """Return why nobody can tell what has to be done on the node; None where enough was seen.

    A plan without steps means nothing then.
    """
    if isinstance(scene.facts.receipts, Unknown):
        return f"the roles' receipts cannot be read: {scene.facts.receipts.reason}"
    if isinstance(scene.facts.managed, Unknown):
        return f"what the roles manage cannot be looked at: {scene.facts.managed.reason}"
    return None


def _unseen(scene: PlanScene) -> list[str]:
    reason = blind(scene)
    managed = scene.facts.managed
    hung = [] if isinstance(managed, Unknown) else [f"{shown(name)} did not answer in time" for name in managed.hung]
    return [reason] if reason else hung


def causes_of(scene: PlanScene) -> dict[str, tuple[Cause, ...]]:
    """Return why each role has to run on the node, in the order of ``site.yml``; roles that need not are not there."""
    return _with_needs(_causes(scene), scene)


def _with_needs(causes: dict[str, tuple[Cause, ...]], scene: PlanScene) -> dict[str, tuple[Cause, ...]]:
    """Return the causes with the steps that steps of other roles require, in the order of ``site.yml``.

    A role without a valid receipt runs as a whole, and needs no further cause.
    """
    for role, component in COMPONENTS.items():
        for need in component.needs(causes[role], scene) if role in causes else ():
            own = causes.get(need.role, ())
            if scene.enabled(need.role) and not is_whole_run(own) and not (own and need.only_alone):
                causes[need.role] = (*own, Cause(CauseKind.NEED, role, need.reason))
    return {role: causes[role] for role in COMPONENTS if role in causes}


def _causes(scene: PlanScene) -> dict[str, tuple[Cause, ...]]:
    found = {role: _by_receipt(scene, role) for role in COMPONENTS if scene.enabled(role)}
    for check in scene.failing:
        role = check.id.partition(".")[0]
        if role in found and is_fixable(scene, check):
            found[role] = (*found[role], Cause(CauseKind.CHECK, check.id, check.reason))
    forced = (Cause(CauseKind.FORCED, "", "requested by --force"),)
    found = {role: causes or (forced if role in scene.forced else ()) for role, causes in found.items()}
    return {role: causes for role, causes in found.items() if causes}


def _by_receipt(scene: PlanScene, role: str) -> tuple[Cause, ...]:
    """Return what the role's receipt says against what is there and what is wanted now."""
    receipts, managed = scene.facts.receipts, scene.facts.managed
    if isinstance(receipts, Unknown):
        return ()
    receipt = receipts.get(role)
    if receipt is None:
        return _whole(NEVER_APPLIED)
    if receipt.error:
        return _whole(f"its receipt cannot be read: {shown(receipt.error)}")
    seen = managed if isinstance(managed, Managed) else Managed({role: True})
    if not seen.sealed.get(role):
        return _whole("its receipt was edited by other hands")
    return (*_by_fingerprint(scene, role, receipt.content), *differences(
        receipt.content, seen.observed.get(role, {}), _booted(scene)
    ))  # fmt: skip


def _by_fingerprint(scene: PlanScene, role: str, content: Mapping[str, object]) -> tuple[Cause, ...]:
    recorded = content.get("fingerprint")
    salt = salt_of(recorded)
    if salt is None or not isinstance(recorded, dict):
        return _whole("its receipt does not say with which variables it was applied: by ansible-playbook, most likely")
    return changed(recorded, fingerprint(role, scene.node, scene.cluster, scene.sources, salt))


def _whole(reason: str) -> tuple[Cause, ...]:
    return (Cause(CauseKind.RECEIPT, "", reason),)


def _booted(scene: PlanScene) -> str:
    """Return when the node booted, by the clock of whoever reads the plan; empty where nobody can tell.

    A node may say that it has been up for longer than there are years.
    """
    boot = scene.facts.boot
    if not isinstance(boot, Boot) or scene.now is None:
        return ""
    try:
        at = scene.now - timedelta(seconds=boot.uptime_seconds)
    except OverflowError:
        return ""
    return at.strftime("%H:%M" if scene.now - at < _DAY else "%Y-%m-%d %H:%M")


def waiting(
    scene: PlanScene, classes: Mapping[str, StepClass], causes: Mapping[str, Sequence[Cause]]
) -> dict[str, tuple[str, ...]]:
    """Return the roles whose steps need the node idle, with the jobs that keep it busy."""
    jobs = _jobs(scene)
    if not jobs:
        return {}
    late = {role for role, what in classes.items() if what is not StepClass.SAFE}
    for _ in classes:  # one may wait with another that waits with a third
        late |= {role for role in classes if late.intersection(COMPONENTS[role].waits_with)}
    also = {role for role in classes if COMPONENTS[role].waits_also(late, causes.get(role, ()), scene)}
    return dict.fromkeys(late | also, jobs)


def _jobs(scene: PlanScene) -> tuple[str, ...]:
    """Return what speaks against an idle node; not to know is to be busy."""
    managed = scene.facts.managed
    if isinstance(managed, Unknown):
        return (f"it cannot be told whether a job runs: {managed.reason}",)
    return managed.jobs
