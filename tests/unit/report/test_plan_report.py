"""A plan with the differences of files, for a person and for scripts."""

from __future__ import annotations

import json

from provision.model import NEVER_APPLIED, FileDiff, NodePlan, PackageChange, Plan, RoleDiff, Step, StepClass
from provision.model.reason import reason
from provision.report.plan_report import as_document, as_text
from provision.report.reasons import message
from tests.support.reasons import plain

STEP = Step("base_system", StepClass.SAFE, (plain("/etc/x was changed manually"),))
PLAN = Plan(tuple(NodePlan(f"gpu{number}", (STEP,)) for number in range(1, 7)))
CHANGE = FileDiff("/etc/x", "@@ -1 +1 @@\n-old\n+new")


def as_reason(text):
    return reason(NEVER_APPLIED) if text == NEVER_APPLIED else plain(text)


def planned(number, *reasons, waits=(), findings=()):
    return NodePlan(
        f"b8-{number}", (Step("base_system", StepClass.SAFE, tuple(map(as_reason, reasons)), waits),), findings=findings
    )


def test_bare_nodes_share_one_block():
    """What else differs on each of them follows from the first reason; scripts get all of it."""
    plan = Plan(tuple(planned(n, NEVER_APPLIED, f"names resolve wrongly here: b8-{n}") for n in range(1, 1001)))

    assert as_text(plan).splitlines() == [
        "b8-[1-1000]",
        "  + base_system         safe",
        "      it was never applied here, or its receipt is missing",
        "",
        "0 of 1000 nodes are up to date.",
        "Plan: 1000 steps to add, 0 to change on 1000 nodes.",
    ]
    assert as_document(plan)["nodes"][7]["steps"][0]["reasons"][1] == "names resolve wrongly here: b8-8"


def test_a_few_nodes_that_differ_in_details_have_separate_blocks():
    plan = Plan(tuple(planned(n, f"names resolve wrongly here: b8-{n}") for n in range(1, 4)))

    assert [line for line in as_text(plan).splitlines() if "resolve" in line] == [
        f"      names resolve wrongly here: b8-{n}" for n in range(1, 4)
    ]


def test_many_nodes_that_differ_in_details_share_a_block():
    """The block has the details of one node and a note; nodes with different steps are in separate blocks."""
    jobs = [(f"process {n} (python3 of root) holds /dev/nvidia{n % 8}",) * (1 + n % 2) for n in range(40)]
    nodes = [planned(n, f"file {n} differs: {n * 7}", waits=jobs[n]) for n in range(40)]
    text = as_text(Plan((*nodes, planned(77, "file 7 differs: 1"), planned(78))))

    assert text.splitlines()[:6] == [
        "b8-[0-39]",
        "  (details of b8-0; those of the other nodes differ: -v)",
        "  ~ base_system         safe",
        "      file 0 differs: 0",
        "      ! waits for: process 0 (python3 of root) holds /dev/nvidia0",
        "",
    ]
    assert text.count("b8-") == 4
    verbose = as_text(Plan((*nodes, planned(77, "file 7 differs: 1"))), verbose=True)
    assert all(f"file {n} differs: {n * 7}" in verbose for n in range(40))


def test_unreachable_nodes_are_grouped_by_cause():
    errors = [f"10.0.0.{n}: {'no route to host' if n % 2 else 'connection refused'}" for n in range(20)]
    text = as_text(Plan(tuple(NodePlan(f"n{n}", error=error, reachable=False) for n, error in enumerate(errors))))

    assert [line for line in text.splitlines() if line.startswith("n")] == [
        "n[0,2,4,6,8,10,12,14] and 2 more", "n[1,3,5,7,9,11,13,15] and 2 more",
    ]  # fmt: skip


def test_no_line_is_wider_than_a_terminal():
    names = [f"{'long-name-' * 3}{letter}{'x' * 30}" for letter in "abcdefghij"]
    plan = Plan(tuple(NodePlan(name, (STEP,), findings=(plain("word " * 40),)) for name in names))

    assert max(map(len, as_text(plan).splitlines())) <= 80


def test_a_reason_of_many_steps_is_printed_once():
    """Reasons that one or two steps have stay with them."""
    roles = ("platform", "base_system", "rdma_stack")
    own = Step("docker_engine", StepClass.NEEDS_IDLE, (plain("docker is stopped"),))
    alike = tuple(Step(role, StepClass.SAFE, (as_reason(NEVER_APPLIED),)) for role in roles)

    assert as_text(Plan((NodePlan("gpu1", alike),))).splitlines()[:3] == [
        "gpu1",
        f"  all 3 steps: {message(as_reason(NEVER_APPLIED))}",
        "  + platform            safe",
    ]
    mixed = as_text(Plan((NodePlan("gpu1", (*alike, own)),)))
    assert mixed.count("never applied") == 1
    assert "  platform, base_system, rdma_stack: it was never applied" in mixed
    assert "      docker is stopped" in mixed


def test_long_lists_are_truncated_with_the_number_of_omitted_entries():
    """All items are in the verbose text and in the document."""
    packages = tuple(PackageChange(f"package-number-{n}", "1.0") for n in range(20))
    files = tuple(f"/etc/systemd/system/provision-{n}.service" for n in range(9))
    step = Step("base_system", StepClass.SAFE, (plain("x"),), packages=packages, files=files)
    plan = Plan(
        (NodePlan("gpu1", (step,), dependencies=packages, preserved=tuple((f"docker_{n}", "1") for n in range(30))),)
    )
    text = as_text(plan)
    verbose = as_text(plan, verbose=True)

    assert "      ~ writes /etc/systemd/system/provision-0.service and 8 more (-v)" in text.splitlines()
    assert text.count("more (-v)") == 4
    assert len(text.splitlines()) <= 15
    assert all(str(name) in verbose for name in (*files, "package-number-19 1.0", "docker_29 1"))
    assert "more (-v)" not in verbose
    assert max(map(len, text.splitlines())) <= 80


def test_preserved_settings_are_shown_with_the_command_that_records_them():
    """A value may be long; scripts get all of it."""
    mirrors = [f"https://mirror{n}.example.org" for n in range(9)]
    preserved = (("docker_engine_source", '"present"'), ("docker_engine_registry_mirrors", json.dumps(mirrors)))
    plan = Plan((NodePlan("gpu1", (STEP,), preserved=preserved), NodePlan("gpu2", preserved=preserved)))

    assert as_text(plan).splitlines()[:4] == [
        "gpu1",
        '  preserved settings: docker_engine_source "present",',
        '    docker_engine_registry_mirrors ["https://mirror0.example.org", "https:/...',
        "  ~ base_system         safe",
    ]
    assert as_text(plan).splitlines()[-1] == "2 nodes have preserved settings; to record them: provision adopt"
    assert as_document(plan)["nodes"][0]["kept"]["docker_engine_registry_mirrors"] == mirrors


def test_differences_follow_the_plan_and_the_same_one_is_shown_once():
    """Each with node, role and path; of many nodes the first ones are named."""
    diffs = [RoleDiff(node.name, "base_system", (CHANGE,)) for node in PLAN.nodes[:5]]
    text = as_text(PLAN, [*diffs, RoleDiff("gpu6", "base_system", (FileDiff("/etc/y", "@@ -1 +0,0 @@\n-mine"),))])

    assert text.startswith(as_text(PLAN))
    assert text.removeprefix(as_text(PLAN)) == (
        "\n\n--- gpu1, gpu2, gpu3, gpu4 and 1 more: base_system: /etc/x\n@@ -1 +1 @@\n-old\n+new"
        "\n\n--- gpu6: base_system: /etc/y\n@@ -1 +0,0 @@\n-mine"
    )


def test_a_long_diff_is_truncated_with_the_number_of_omitted_lines():
    """In the text; scripts get all of it."""
    long = FileDiff("/etc/x", "\n".join(f"+line {number}" for number in range(1000)))
    diffs = [RoleDiff("gpu1", "base_system", (long,))]
    lines = as_text(PLAN, diffs).split("\n")

    assert lines[-2:] == ["+line 59", "(940 more lines; --json has all)"]
    assert as_document(PLAN, diffs)["nodes"][0]["steps"][0]["diffs"][0]["diff"].endswith("+line 999")


def test_omitted_diffs_have_a_note():
    """A secret, a failed comparison, and a role without file changes have different notes."""
    diffs = [
        RoleDiff(
            "gpu1", "base_system", (FileDiff("Log in", note="content is not shown, because it may contain secrets"),)
        ),
        RoleDiff("gpu2", "base_system", (CHANGE,), "could not be compared: Look: docker is not there"),
        RoleDiff("gpu3", "base_system"),
    ]
    text = as_text(PLAN, diffs)

    assert "--- gpu1: base_system: Log in\n(content is not shown, because it may contain secrets)" in text
    assert "--- gpu2: base_system: /etc/x\n@@" in text
    assert "--- gpu2: base_system\n(could not be compared: Look: docker is not there)" in text
    assert "--- gpu3: base_system\n(no file would change)" in text


def test_json_has_differences_only_on_request():
    """What platform does for a step where it is none itself is with the node."""
    packages = RoleDiff("gpu1", "platform", (FileDiff("Install packages", "@@ -0,0 +1 @@\n+pigz"),))
    document = as_document(PLAN, [packages, RoleDiff("gpu1", "base_system", (CHANGE,), "x")])
    first, second = document["nodes"][:2]

    assert first["steps"][0]["diffs"] == [{"path": "/etc/x", "diff": CHANGE.diff, "note": ""}]
    assert first["steps"][0]["diffs_note"] == "x"
    assert first["diffs"] == [
        {"role": "platform", "path": "Install packages", "diff": "@@ -0,0 +1 @@\n+pigz", "note": ""}
    ]
    assert (second["steps"][0]["diffs"], second["diffs"]) == ([], [])
    assert "diffs" not in str(as_document(PLAN))


def test_the_summary_reports_idle_nodes_only_if_all_are_idle():
    """Steps that disturb jobs by --disruptive, and those that wait for an owner, are counted apart."""
    job, owner = "process 7 holds /dev/nvidia0", "alice, who keeps a difference"
    idle = StepClass.NEEDS_IDLE
    steps = (
        Step("docker_engine", idle, (plain("x"),), disturbs=(job,)),
        Step("rdma_stack", idle, (plain("x"),), (job,)),
        Step("peer_memory", idle, (plain("x"),), (owner,), owners=(owner,)),
    )
    text = as_text(Plan((NodePlan("a", steps),)))

    assert f"      ! may disturb: {job}" in text
    assert "no job runs there" not in text
    assert "1 of them may disturb running jobs (allowed by --disruptive)" in " ".join(text.split())
    assert "1 waits for jobs to end" in " ".join(text.split())
    assert "1 would undo a preserved difference" in " ".join(text.split())
    assert as_document(Plan((NodePlan("a", steps),)))["nodes"][0]["steps"][0]["disturbs"] == [job]
