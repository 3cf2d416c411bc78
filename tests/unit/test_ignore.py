"""Ignored local differences of an inventory stay, and are reported."""

from __future__ import annotations

from provision.model import NodePlan, Step, StepClass
from provision.model.reason import reason
from provision.planning import ignore
from provision.report.reasons import message
from provision.testing import make_node

DAEMON = reason(
    "file.json_edited", path="/etc/docker/daemon.json", keys=[reason("file.keys_differ", keys=["log-opts"])]
)
STOPPED = reason("unit.stopped", name="docker.service")
KEEP = {"what": "daemon.json*log-opts", "owner": "alice", "reason": "the log collector needs it"}


def with_ignored(plan, node, forced=()):
    return ignore.with_ignored(plan, node, forced, text=message)


def plan(*reasons):
    return NodePlan("a", (Step("docker_engine", StepClass.NEEDS_IDLE, reasons),))


def node(*entries):
    return make_node("a", cluster_ignore=list(entries))


def test_an_ignored_difference_is_reported_with_owner_and_reason_instead_of_a_step():
    result = with_ignored(plan(DAEMON), node(KEEP))

    assert result.steps == ()
    assert result.findings == (
        reason("plan.ignored", difference=DAEMON, owner="alice", cause="the log collector needs it"),
    )


def test_an_ignored_difference_suppresses_all_steps_of_its_role():
    """It runs whole and would undo the difference."""
    (step,) = with_ignored(plan(DAEMON, STOPPED), node(KEEP)).steps

    assert step.reasons == (STOPPED,)
    assert step.waits_for == ("alice, who keeps a difference (--force docker_engine undoes it)",)


def test_force_overrides_ignored_differences():
    assert with_ignored(plan(DAEMON), node(KEEP), {"docker_engine"}) == plan(DAEMON)


def test_other_differences_and_invalid_entries_have_no_effect():
    for entries in ((), ({**KEEP, "what": "/etc/hosts"},), ({"owner": "bob"},), ("text",), ({**KEEP, "what": ""},)):
        assert with_ignored(plan(DAEMON), node(*entries)) == plan(DAEMON)
