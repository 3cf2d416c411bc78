"""Which failing checks an apply can fix, by a run of the role that the check belongs to.

The others are findings: they are shown, and no step runs for them, because it would run at every apply and never help.
"""

from __future__ import annotations

from provision.checks.base import UNJUDGED
from provision.components import COMPONENTS
from provision.model import CheckResult, CheckStatus
from provision.planning.scene import PlanScene


def is_fixable(scene: PlanScene, result: CheckResult) -> bool:
    """Return whether an apply can fix the failing check.

    It cannot where a fact was unavailable: nothing may be wrong then.
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
