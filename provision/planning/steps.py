"""Which roles have to run on a node, in which order, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from provision.checks.base import UNJUDGED
from provision.components import COMPONENTS
from provision.components.common import is_whole_run
from provision.components.maintenance_windows import is_open, next_opening, parse_windows
from provision.facts import Unknown
from provision.facts.managed import Managed
from provision.facts.system import Boot
from provision.model import CheckResult, CheckStatus, Step, StepClass
from provision.model.cause import Cause, CauseKind, shown
from provision.model.reason import Reason, reason
from provision.planning.differences import differences
from provision.planning.fingerprint import changed, fingerprint, salt_of
from provision.planning.scene import PlanScene
from provision.planning.stack_lock import LOCK_CHECK, lock_causes

_DAY = timedelta(days=1)


def plan_node(scene: PlanScene) -> tuple[Step, ...]:
    """Return the roles that have to run on the node, in the order of ``site.yml``, each with its reasons."""
    causes = causes_of(scene)
    classes = {role: step_class(role, own, scene) for role, own in causes.items()}
    late = waiting(scene, classes, causes)
    allowed = scene.node.name in scene.disruptive
    schedule = {role: schedule_of(scene) for role, what in classes.items() if what is StepClass.NEEDS_REBOOT}
    return tuple(
        Step(
            role,
            classes[role],
            _reasons(role, own, classes[role], scene),
            waits_for=(*schedule.get(role, ()), *(() if allowed else late.get(role, ()))),
            schedule=schedule.get(role, ()),
            disturbs=late.get(role, ()) if allowed and classes[role] is not StepClass.SAFE else (),
        )
        for role, own in causes.items()
    )


def schedule_of(scene: PlanScene) -> tuple[str, ...]:
    """Return what a reboot of the node waits for besides jobs: the option, or the maintenance window."""
    if scene.reboot:
        return ()
    value = scene.node.variables.get("cluster_window")
    if not isinstance(value, str) or not value.strip():
        return ("--reboot, because the node has no maintenance window (cluster_window)",)
    try:
        windows = parse_windows(value)
    except ValueError as error:
        return (f"--reboot, because cluster_window {error}",)
    now = scene.now or datetime.now().astimezone()
    if is_open(windows, now):
        return ()
    opens = next_opening(windows, now)
    when = f"{opens:%a %Y-%m-%d %H:%M %Z}" if opens else "never"
    return (f"the maintenance window {value.strip()}, which opens at {when} (--reboot does not wait)",)


def _reasons(role: str, causes: Sequence[Cause], what: StepClass, scene: PlanScene) -> tuple[Reason, ...]:
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
    if COMPONENTS[role].needs_reboot(causes, scene):
        return StepClass.NEEDS_REBOOT
    return StepClass.NEEDS_IDLE if COMPONENTS[role].is_disruptive(causes, scene) else StepClass.SAFE


def findings(scene: PlanScene) -> tuple[Reason, ...]:
    """Return the failed checks that no apply can fix, a system that is not tested, and what could not be probed."""
    failed = [
        reason("plan.finding", check=check.id, cause=check.reason)
        for check in scene.failing
        if (check.status is CheckStatus.FAIL or check.id == "node.os")
        and check.id != LOCK_CHECK
        and not is_fixable(scene, check)
    ]
    failed += [one.why for one in scene.deviations if not one.role]
    why = blind(scene)
    managed = scene.facts.managed
    hung = () if isinstance(managed, Unknown) else managed.hung
    return (*failed, *([why] if why else [reason("plan.no_answer", command=shown(name)) for name in hung]))


def blind(scene: PlanScene) -> Reason | None:
    """Return why the node cannot be planned; None if enough is known. Otherwise a plan without steps means nothing."""
    if isinstance(scene.facts.receipts, Unknown):
        return reason("plan.receipts_unreadable", cause=scene.facts.receipts.reason)
    if isinstance(scene.facts.managed, Unknown):
        return reason("plan.managed_unreadable", cause=scene.facts.managed.reason)
    return None


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
    causes = {role: _by_receipt(scene, role) for role in COMPONENTS if scene.enabled(role)}
    for check in scene.failing:
        role = check.id.partition(".")[0]
        if role in causes and is_fixable(scene, check):
            causes[role] = (*causes[role], Cause(CauseKind.CHECK, check.id, check.reason))
    for role, own in lock_causes(scene.node, scene.cluster.stack_lock, scene.deviations, scene.facts).items():
        if role in causes:
            causes[role] = (*causes[role], *own)
    forced = (Cause(CauseKind.FORCED, "", reason("plan.forced")),)
    causes = {role: own or (forced if role in scene.forced else ()) for role, own in causes.items()}
    return {role: own for role, own in causes.items() if own}


def _by_receipt(scene: PlanScene, role: str) -> tuple[Cause, ...]:
    """Return the differences between the role's receipt, the node and the desired state."""
    receipts, managed = scene.facts.receipts, scene.facts.managed
    if isinstance(receipts, Unknown):
        return ()
    receipt = receipts.get(role)
    if receipt is None and not COMPONENTS[role].is_requested_on(scene.node):
        return ()
    if receipt is None:
        return _whole(reason("plan.never_applied"))
    if receipt.error:
        return _whole(reason("plan.receipt_unreadable", cause=shown(receipt.error)))
    seen = managed if isinstance(managed, Managed) else Managed({role: True})
    if not seen.sealed.get(role):
        return _whole(reason("plan.receipt_edited"))
    return (*_by_fingerprint(scene, role, receipt.content), *differences(
        receipt.content, seen.observed.get(role, {}), _booted(scene)
    ))  # fmt: skip


def _by_fingerprint(scene: PlanScene, role: str, content: Mapping[str, object]) -> tuple[Cause, ...]:
    recorded = content.get("fingerprint")
    salt = salt_of(recorded)
    if salt is None or not isinstance(recorded, dict):
        return _whole(reason("plan.no_fingerprint"))
    return changed(recorded, fingerprint(role, scene.node, scene.cluster, scene.sources, salt))


def _whole(why: Reason) -> tuple[Cause, ...]:
    return (Cause(CauseKind.RECEIPT, "", why),)


def _booted(scene: PlanScene) -> str:
    """Return when the node booted, in the time zone of the plan; empty if unknown.

    The uptime comes from the node and may be too long for a date.
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
    """Return the roles whose steps need the node idle, with the jobs that keep it busy and what else they end."""
    jobs = _jobs(scene)
    disruptive = [role for role, what in classes.items() if what is not StepClass.SAFE]
    ended = {role: (*jobs, *COMPONENTS[role].also_disrupts(scene)) for role in disruptive}
    late = {role for role, holders in ended.items() if holders}
    if not jobs and not late:
        return {}
    together = tuple(dict.fromkeys([*jobs, *(one for holders in ended.values() for one in holders)]))
    while more := {role for role in classes if late.intersection(COMPONENTS[role].waits_with)} - late:
        late |= more  # a role may wait with another one that waits with a third
    also = {role for role in classes if COMPONENTS[role].waits_also(late, causes.get(role, ()), scene)}
    return {role: ended.get(role) or together for role in late | also}


def _jobs(scene: PlanScene) -> tuple[str, ...]:
    """Return the jobs that keep the node busy; an unknown state counts as busy."""
    managed = scene.facts.managed
    if isinstance(managed, Unknown):
        return (f"it is unknown whether a job runs: {managed.reason}",)
    return managed.jobs


def is_fixable(scene: PlanScene, result: CheckResult) -> bool:
    """Return whether an apply can fix the failing check, by a run of the role that the check belongs to.

    It cannot where a fact was unavailable: nothing may be wrong then. The other failing checks are findings: they are
    shown, and no step runs for them, because it would run at every apply and never help.
    """
    component = COMPONENTS.get(result.id.partition(".")[0])
    if component is None or result.id in component.never_fixes:
        return False
    if result.status is CheckStatus.WARN and result.id not in component.fixes_warnings:
        return False
    if result.reason.code in UNJUDGED:
        return False
    decide = component.fixes_if.get(result.id)
    return decide is None or decide(scene, result)
