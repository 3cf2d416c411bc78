"""Reports of all kinds on a narrow screen: width, colours, headers, hints and times have one form."""

from __future__ import annotations

import re

import pytest

from provision.model import (
    NEVER_APPLIED,
    ApplyReport,
    CheckResult,
    CheckStatus,
    Failure,
    NodeChecks,
    NodePlan,
    NodeReport,
    NodeReset,
    NodeStatus,
    PackageChange,
    Plan,
    ResetResult,
    RoleReport,
    RoleStatus,
    Step,
    StepClass,
    Verification,
)
from provision.model.history import Entry, Unlocked
from provision.model.reason import reason
from provision.report import (
    apply_report,
    doctor_report,
    history_report,
    layout,
    plan_report,
    reset_report,
    verify_report,
)
from tests.support.reasons import plain

NAMES = [f"gpu{number}" for number in range(1, 65)]
LONG = "a word and another one, " * 12
ESCAPE = "\x1b"
"""Every colour begins with it."""


def _plan():
    steps = (
        Step("base_system", StepClass.SAFE, (reason(NEVER_APPLIED),), files=tuple(f"/etc/{n}/file" for n in range(20))),
        Step("docker_engine", StepClass.NEEDS_IDLE, (plain(LONG),), (LONG,), packages=(PackageChange("pigz", "2.8"),)),
    )
    return plan_report.as_text(Plan(tuple(NodePlan(name, steps) for name in NAMES)))


def _apply():
    roles = tuple(RoleReport(f"role_{n}", RoleStatus.CHANGED, ()) for n in range(9))
    failure = Failure("docker_engine", "Install", LONG, "", LONG)
    nodes = [NodeReport(name, NodeStatus.CHANGED, roles) for name in NAMES[1:]]
    return apply_report.as_text(ApplyReport((NodeReport("gpu1", NodeStatus.FAILED, roles, failure), *nodes), 466.2))


def _verify():
    checks = tuple(CheckResult(f"base_system.{status}", status, plain(LONG, LONG)) for status in CheckStatus)
    return verify_report.as_text(Verification(tuple(NodeChecks(name, checks) for name in NAMES), ()))


def _doctor():
    checks = [CheckResult(f"controller.{status}", status, plain(LONG, LONG)) for status in CheckStatus]
    return doctor_report.as_text(checks, {"python": "3.11", "system": LONG})


def _history():
    entry = Entry(
        id="1", started="2026-11-28T10:00:00Z", user="somebody-with-a-long-name", host="controller", pid=1, process="",
        command=f"apply {LONG}", nodes={name: {"status": "failed"} for name in NAMES}, status="failed",
    )  # fmt: skip
    done = [Unlocked(node=name, result="refused", reason=LONG, remedy=LONG) for name in NAMES]
    return history_report.fleet_text([entry]) + "\n" + history_report.unlocked_text(done)


def _reset():
    return reset_report.as_plan([NodeReset(name, ResetResult.PLANNED, (LONG, "remove /etc/x")) for name in NAMES])


def _table():
    rows = [["gpu1", layout.state("ready"), LONG], ["gpu10", layout.state("NotReady"), ""]]
    return "\n".join(layout.table(["node", "status", "why"], rows))


REPORTS = {
    "plan": _plan,
    "apply": _apply,
    "verify": _verify,
    "doctor": _doctor,
    "history": _history,
    "reset": _reset,
    "table": _table,
}


@pytest.fixture(params=REPORTS)
def render(request):
    """Return a function that renders a report in a width, and what a terminal gets."""

    def rendered(columns, *, colour):
        layout.choose(columns=columns, colour=colour)
        try:
            return layout.painted(REPORTS[request.param](), colour=True)
        finally:
            layout.choose()

    return rendered


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("colour", [False, True])
def test_no_line_is_wider_than_the_terminal(render, columns, colour):
    lines = re.sub(r"\x1b\[\d+m", "", render(columns, colour=colour)).splitlines()

    assert [line for line in lines if len(line) > columns] == []


def test_there_are_colours_only_if_they_are_enabled(render):
    """A pipe, NO_COLOR and TERM=dumb disable them; the text is the same."""
    plain_text, coloured = render(80, colour=False), render(120, colour=True)

    assert ESCAPE not in plain_text
    assert ESCAPE in coloured
    assert coloured.count(f"{ESCAPE}[0m") * 2 == coloured.count(ESCAPE)


def test_headers_are_in_upper_case_and_remedies_are_hints(render):
    text = render(80, colour=False)

    assert "remedy: " not in text
    assert not re.search(r"^(node|when|worker|name) {2,}", text, re.MULTILINE)


def test_times_are_human(render):
    """Minutes and hours, not hundreds of seconds."""
    assert not re.search(r"\b\d{3,} ?s(econds)?\b", render(80, colour=False))


def test_symbols_of_a_plan_have_their_colours():
    """Green for new, yellow for changed, magenta for disruptive; the summary counts them."""
    layout.choose(colour=True)
    try:
        lines = layout.painted(_plan(), colour=True).splitlines()
    finally:
        layout.choose()

    assert f"  {ESCAPE}[32m+{ESCAPE}[0m base_system         safe" in lines
    assert f"  {ESCAPE}[33m~{ESCAPE}[0m docker_engine       {ESCAPE}[35mneeds-idle{ESCAPE}[0m" in lines
    assert any(line.startswith(f"      {ESCAPE}[35m!{ESCAPE}[0m waits for: ") for line in lines)
    assert any(line.startswith("Plan: 64 steps to add, 64 to change on 64 nodes; ") for line in lines)
