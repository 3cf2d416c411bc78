"""Steps that wait for jobs or require an idle node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.facts import Unknown
from provision.model import Step, StepClass
from provision.report.node_names import in_short

if TYPE_CHECKING:
    from provision.workflow.plan import PlanResult


def steps_to_confirm(result: PlanResult) -> dict[str, tuple[Step, ...]]:
    """Return for each node the steps that an apply may run, and that the operator has to confirm.

    These are the steps that wait for nothing, and on nodes that are drained first also those that wait for jobs.
    """
    steps = {
        plan.name: tuple(
            step
            for step in plan.steps
            if not step.waits_for or (_drains(result, plan.name) and waits_only_for_jobs(result, plan.name, step))
        )
        for plan in result.plan.nodes
    }
    return {name: left for name, left in steps.items() if left}


def drained_first(result: PlanResult) -> str:
    """Return the text about nodes that an apply drains, for the operator's consent; empty if there are none."""
    names = [
        name for name, steps in steps_to_confirm(result).items() if _drains(result, name) and has_disruptive_step(steps)
    ]
    return f"drained before, and resumed when they have converged: {in_short(names)}" if names else ""


def steps_of(result: PlanResult, name: str) -> tuple[Step, ...]:
    """Return the steps of one node."""
    return next((plan.steps for plan in result.plan.nodes if plan.name == name), ())


def has_disruptive_step(steps: Sequence[Step]) -> bool:
    """Return whether any of the steps is disruptive."""
    return any(step.step_class is not StepClass.SAFE for step in steps)


def waits_only_for_jobs(result: PlanResult, name: str, step: Step) -> bool:
    """Return whether a step waits for jobs alone, which end, and not for the owner of a difference."""
    managed = result.facts[name].managed if name in result.facts else Unknown("")
    return not isinstance(managed, Unknown) and set(step.waits_for) <= set(managed.jobs)


def _drains(result: PlanResult, name: str) -> bool:
    return name in result.facts and bool(result.cluster.node(name).variables.get("cluster_drain"))
