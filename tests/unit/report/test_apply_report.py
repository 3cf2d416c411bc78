"""The summary of an apply names the real cause of whatever was left undone, and the remedy for that cause."""

from __future__ import annotations

from provision.model import (
    ApplyReport,
    NodePlan,
    NodeReport,
    NodeStatus,
    Plan,
    RoleReport,
    RoleStatus,
    Step,
    StepClass,
)
from provision.report.apply_report import as_document, as_text
from provision.workflow.node_results import NodeResults
from provision.workflow.plan import PlanResult
from tests.support.reasons import plain

JOB = "process 7 (python3 of root) holds /dev/nvidia0"
OWNER = "alice, who keeps a difference (--force docker_engine undoes it)"


def outcomes_of(*steps):
    collected = NodeResults(["a"])
    collected.add_probe(PlanResult(None, Plan((NodePlan("a", steps),)), {}, {}))
    return collected


def test_a_role_that_waits_for_an_owner_does_not_suggest_disruptive():
    """A preserved difference does not end as a job does; --disruptive would not run the step either."""
    step = Step("docker_engine", StepClass.NEEDS_IDLE, (plain("x"),), (OWNER,), owners=(OWNER,))
    report = outcomes_of(step).report()

    assert "--disruptive" not in as_text(report)
    assert "jobs" not in as_text(report)
    assert as_document(report)["nodes"][0]["roles"][0]["remedy"] == (
        "To run it in spite of the preserved difference, add: --limit a --force docker_engine"
    )


def test_a_role_that_waits_for_jobs_lists_them_with_a_remedy():
    report = outcomes_of(Step("docker_engine", StepClass.NEEDS_IDLE, (plain("x"),), (JOB,))).report()

    assert f"a: docker_engine is waiting\n  x\n  waits for: {JOB}\n  hint: Apply again when" in as_text(report)
    assert "add: --limit a --disruptive a" in " ".join(as_text(report).split())


def test_nodes_skipped_for_the_same_cause_are_grouped():
    """Sixty-three nodes behind a failed canary are three lines."""
    names = [f"gpu{number}" for number in range(1, 65)]
    collected = NodeResults(names)
    step = Step("docker_engine", StepClass.NEEDS_IDLE, (plain("x"),))
    collected.add_probe(PlanResult(None, Plan(tuple(NodePlan(name, (step,)) for name in names)), {}, {}))
    collected.skip(names[1:], "not started, because gpu1 failed", "Fix gpu1, then apply again.")
    text = as_text(collected.report())

    assert text.count("not started") == 1
    assert "gpu[2-64]: skipped\n  not started, because gpu1 failed\n  hint: Fix gpu1, then apply again." in text


def test_an_apply_that_only_waits_differs_from_a_failed_one():
    """By its exit code, 6: scripts try such an apply again later."""
    waiting = outcomes_of(Step("docker_engine", StepClass.NEEDS_IDLE, (plain("x"),), (JOB,))).report()
    done = outcomes_of().report()
    names = ["a", "b"]
    collected = NodeResults(names)
    step = Step("docker_engine", StepClass.NEEDS_IDLE, (plain("x"),))
    collected.add_probe(PlanResult(None, Plan(tuple(NodePlan(name, (step,)) for name in names)), {}, {}))
    collected.skip(["b"], "not started, because a failed", "Fix a.")

    assert [(report.ok, report.only_waits) for report in (waiting, done, collected.report())] == [
        (False, True),
        (True, False),
        (False, False),
    ]


def test_a_row_lists_whole_roles_and_counts_the_others():
    """A name that is cut off is no name."""
    names = ("platform", "base_system", "nvidia_container", "docker_engine", "training_image")
    roles = tuple(RoleReport(name, RoleStatus.CHANGED, ()) for name in names)
    nodes = tuple(NodeReport(f"oper22-{n}", NodeStatus.CHANGED, roles) for n in (1, 3))
    row = as_text(ApplyReport(nodes, 1.0)).splitlines()[3]

    assert row == "oper22-1, oper22-3  changed      platform, base_system and 3 more"
