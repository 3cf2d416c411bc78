"""Reports about 64 nodes have as many lines as there are results, not as many as there are nodes."""

from __future__ import annotations

import pytest

from provision.documents.audit import AuditRecord, AuditTrail
from provision.errors import ConnectionFailed
from provision.gdr import GdrPath, GdrVerdict, NodeGdr
from provision.model import (
    ApplyReport,
    CheckResult,
    CheckStatus,
    Failure,
    NodeChecks,
    NodeReload,
    NodeReport,
    NodeReset,
    NodeStatus,
    ReloadResult,
    ResetResult,
    RoleReport,
    RoleStatus,
    Verification,
)
from provision.model.history import Entry, Unlocked
from provision.model.job_views import NodeView
from provision.model.reason import reason
from provision.report import (
    apply_report,
    audit_report,
    gdr_report,
    history_report,
    image_report,
    job_list,
    job_nodes,
    reload_report,
    reset_report,
    verify_report,
)
from provision.report.grouping import reason_lines
from tests.support.reasons import plain

NAMES = [f"gpu{number}" for number in range(1, 65)]
MANY, LAST = "gpu[1-63]", "gpu64"


def refused(number):
    return f"10.0.0.{number} refuses connections on port 22: nothing listens there ({number} ms)"


def lines_of(text, most):
    lines = text.splitlines()
    assert len(lines) <= most, text
    assert all(len(line) <= 80 for line in lines if not line.startswith("  ")), text
    return lines


def check(number):
    if number == 64:
        return CheckResult("gpu.count", CheckStatus.FAIL, reason("gpu.count.missing", count=7, on_bus=8, missing=()))
    return CheckResult(
        "node.clock", CheckStatus.WARN, reason("docker_engine.service.not_active", state=f"{number * 7}")
    )


GOOD = tuple(CheckResult(f"a.{letter}", CheckStatus.PASS, plain("fine")) for letter in "abcdef")
VERIFICATION = Verification(tuple(NodeChecks(f"gpu{n}", (*GOOD, check(n))) for n in range(1, 65)))


def test_a_verification_begins_with_its_result_and_groups_nodes():
    lines = lines_of(verify_report.as_text(VERIFICATION), 16)

    assert lines[0] == "NOT OK: 1 check failed on 1 of 64 nodes (gpu64), 63 warnings."
    assert [line.split()[0] for line in lines if line.startswith("gpu")] == [MANY, LAST]
    assert f"WARN  node.clock  on {MANY}" in lines
    assert any("details of gpu1; those of the other nodes differ" in line for line in lines)
    assert any(f"--limit '{MANY}'" in line for line in lines)


def test_a_verbose_verification_has_each_node():
    text = verify_report.as_text(VERIFICATION, verbose=True)

    assert all(f"\n{name} " in text for name in NAMES)
    assert all(f"docker.service is {number * 7}" in text for number in range(1, 64))


def failed(number, status=NodeStatus.UNREACHABLE):
    return NodeReport(f"gpu{number}", status, (), Failure(None, "connect", refused(number), "", "Check sshd."))


def test_an_apply_begins_with_its_result_and_groups_failures():
    changed = (RoleReport("docker_engine", RoleStatus.CHANGED),)
    report = ApplyReport((*(failed(n) for n in range(1, 64)), NodeReport("gpu64", NodeStatus.CHANGED, changed)), 12.0)
    lines = lines_of(apply_report.as_text(report), 10)

    assert lines[0] == "1 of 64 nodes are up to date (12s)."
    assert lines[3:5] == ["gpu[1-63]  unreachable", "gpu64      changed      docker_engine"]
    assert f"{MANY}: unreachable at task 'connect'" in lines
    assert "  hint: Check sshd." in lines


def test_an_apply_groups_waiting_roles_with_one_remedy_for_all():
    """The remedy names all nodes, as a pattern that --limit and --disruptive take."""
    nodes = []
    for number in range(1, 65):
        remedy = f"Apply again when the jobs have ended, or add: --limit gpu{number} --disruptive gpu{number}"
        role = RoleReport("docker_engine", RoleStatus.WAITING, (f"waits for: process {number} holds /x",), (), remedy)
        nodes.append(NodeReport(f"gpu{number}", NodeStatus.UNCHANGED, (role,)))
    lines = lines_of(apply_report.as_text(ApplyReport(tuple(nodes), 3.0)), 10)

    assert "gpu[1-64]: docker_engine is waiting" in lines
    assert " ".join(lines[-2:]).endswith("add: --limit 'gpu[1-64]'     --disruptive 'gpu[1-64]'")


def test_a_verbose_apply_has_each_node():
    text = apply_report.as_text(ApplyReport(tuple(map(failed, range(1, 65))), 12.0), verbose=True)

    assert all(text.count(f"{name}: unreachable") == 1 for name in NAMES)


@pytest.mark.parametrize("size", [64, 3])
def test_unreachable_nodes_of_a_list_of_jobs_share_a_line(size):
    """With few nodes each keeps its own message."""
    lines = job_list.unreachable_lines({f"gpu{number}": refused(number) for number in range(1, size + 1)})

    assert len(lines) == (1 if size == 64 else 3)
    assert lines[0].startswith("gpu[1-64]: unreachable: 10.0.0.1" if size == 64 else "gpu1: unreachable: ")


def test_resets_reloads_and_verdicts_are_grouped():
    error = [Failure(None, "connect", refused(number), "", "Check sshd.") for number in range(64)]
    resets = [NodeReset(name, ResetResult.UNREACHABLE, error=own) for name, own in zip(NAMES, error, strict=True)]
    reloads = [
        NodeReload(name, ReloadResult.UNREACHABLE, plain(refused(n), "Check sshd.")) for n, name in enumerate(NAMES)
    ]
    verdicts = [
        NodeGdr(name, GdrVerdict(GdrPath.NONE, (plain(f"{n} cards are missing"),))) for n, name in enumerate(NAMES)
    ]

    assert lines_of(reset_report.as_text(resets), 8)[0] == "0 of 64 nodes have no changes of provision left."
    assert any(line.startswith("gpu[1-64]") for line in lines_of(reload_report.as_text(reloads), 8))
    assert any(line.startswith("gpu[1-64]") for line in lines_of(gdr_report.nodes_text(verdicts), 8))


def test_verbose_resets_reloads_and_verdicts_have_each_node():
    """Also where many results differ in details, which a group does not show."""
    error = [Failure(None, "connect", refused(number), "", "Check sshd.") for number in range(64)]
    resets = [NodeReset(name, ResetResult.UNREACHABLE, error=own) for name, own in zip(NAMES, error, strict=True)]
    reloads = [
        NodeReload(name, ReloadResult.UNREACHABLE, plain(refused(n), "Check sshd.")) for n, name in enumerate(NAMES)
    ]
    verdicts = [NodeGdr(name, GdrVerdict(GdrPath.NONE, (plain("a card is missing"),))) for name in NAMES]
    texts = (
        reset_report.as_plan(resets, verbose=True),
        reset_report.as_text(resets, verbose=True),
        reload_report.as_text(reloads, verbose=True),
        gdr_report.nodes_text(verdicts, verbose=True),
    )

    for text in texts:
        first = [line.split()[0] for line in text.splitlines() if line and not line.startswith(" ")]
        assert [word.rstrip(":") for word in first if word.rstrip(":") in NAMES] == list(NAMES)


def test_images_records_and_locks_are_grouped():
    errors = {name: ConnectionFailed(refused(n), node=name) for n, name in enumerate(NAMES)}
    entry = Entry("1", "2026-11-22T10:03:11Z", "alice", "ops1", command="provision apply", status="changed")
    record = AuditRecord(time=1.0, action="submit", caller="alice@ops1")

    image = image_report.states_text("i", errors).splitlines()
    assert [line.split()[0] for line in image[1:]] == ["NODE", "gpu[1-64]", "gpu[1-64]:", "on", "not"][: len(image) - 1]
    assert lines_of(history_report.nodes_text(dict.fromkeys(NAMES, (entry,))), 3)[0] == "gpu[1-64]"
    assert lines_of(audit_report.audit_text({name: AuditTrail((record,)) for name in NAMES}), 3)[0] == "gpu[1-64]"
    unlocked = [Unlocked(name, "free", "there is no lock to take away") for name in NAMES]
    assert lines_of(history_report.unlocked_text(unlocked), 1)


def test_reasons_of_nodes_below_a_table_are_grouped():
    views = [
        NodeView(
            name,
            f"10.0.0.{n}",
            ready=False,
            reason=reason("placement.node_unreachable", cause=refused(n)),
            simulated=True,
        )
        for n, name in enumerate(NAMES)
    ]
    tables = (job_nodes.node_list_text(views), job_nodes.top_node_text(views))

    for text in tables:
        below = [line for line in text.splitlines() if "refuses" in line or "SIMULATED" in line]
        assert len(below) == 2, text


def test_equal_reasons_are_grouped_with_their_nodes():
    assert reason_lines([("a", "x"), ("b", "y"), ("c", "x")]) == ["a, c: x", "b: y"]
    assert reason_lines(dict.fromkeys(NAMES, "the same")) == ["gpu[1-64]: the same"]
