"""Which failing checks an apply can fix, by a run of the role that the check belongs to.

The others are findings: they are shown, and no step runs for them, because it would run at every apply and never help.
"""

from __future__ import annotations

import dataclasses

from provision.checks.base import UNJUDGED
from provision.components import COMPONENTS
from provision.facts import Unknown
from provision.model import CheckResult, CheckStatus
from provision.planning.scene import PlanScene

__all__ = ["is_fixable"]


def is_fixable(scene: PlanScene, result: CheckResult) -> bool:
    """Return whether an apply can fix the failing check.

    It cannot where a fact was unavailable: nothing may be wrong then.
    """
    component = COMPONENTS.get(result.id.partition(".")[0])
    if component is None or result.id in component.never_fixes:
        return False
    if result.status is CheckStatus.WARN and result.id not in component.fixes_warnings:
        return False
    if _is_unjudged(scene, result):
        return False
    decide = component.fixes_if.get(result.id)
    return decide is None or decide(scene, result)


def _is_unjudged(scene: PlanScene, result: CheckResult) -> bool:
    """Return whether the check fails because a fact is unavailable or not understood: its reason says so then."""
    if result.reason.startswith(UNJUDGED):
        return True
    values = (getattr(scene.facts, field.name) for field in dataclasses.fields(scene.facts))
    return any(isinstance(value, Unknown) and value.reason == result.reason for value in values)
