"""What the steps of a plan would change in files: what is run for it, and what of it is shown."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from provision import engine, workflow
from provision.errors import Interrupted, ProvisionError
from provision.facts.managed import Managed
from provision.facts.records import Receipt
from provision.model import (
    ApplyReport,
    Cluster,
    Difference,
    Failure,
    NodePlan,
    NodeReport,
    NodeStatus,
    Plan,
    RoleReport,
    RoleStatus,
    Step,
    StepClass,
)
from provision.testing import make_node
from provision.workflow.plan import PlanResult
from tests.support.reasons import plain

PASSWORD = "correct-horse"
LOGINS = [{"registry": "r:5000", "username": "bob", "password_secret": PASSWORD}]
DONE = NodeReport("a", NodeStatus.CHANGED, ())


@pytest.fixture
def show(monkeypatch, tmp_path):
    """Compare two steps of node a, one of which waits, while Ansible answers as given; also return its calls."""

    def call(*differences, node=DONE, private=(), raises=None):
        calls = []

        def run_playbook(_inventory, names, **given):
            calls.append((names, given))
            if raises:
                raise raises
            return ApplyReport((node,), 1.0, differences=differences)

        monkeypatch.setattr(engine, "run_playbook", run_playbook)
        steps = (
            Step("base_system", StepClass.SAFE, (plain("x"),)),
            Step("docker_engine", StepClass.NEEDS_IDLE, (plain("x"),), ("process 7 holds /dev/nvidia0",)),
        )
        files = {path: {"type": "file", "mode": "0600"} for path in private}
        facts = SimpleNamespace(
            receipts={"docker_engine": Receipt("docker_engine", {"files": files})}, managed=Managed()
        )
        cluster = Cluster("c", tmp_path / "hosts.yml", (make_node("a", docker_engine_registry_logins=LOGINS),))
        result = PlanResult(cluster, Plan((NodePlan("a", steps), NodePlan("b"))), {"a": facts}, {})
        monkeypatch.setattr("provision.workflow.differences.write_fingerprints", lambda *_: None)
        return workflow.content_differences(cluster, result), calls

    return call


def changed(before, after, path="/etc/x", role="base_system"):
    return Difference("a", role, path, before, after)


def test_ansible_runs_in_check_mode_for_planned_steps_only(show):
    """Those that wait too, which would refuse on a busy node; it keeps no log, in which secrets would be."""
    _, [(names, given)] = show()

    assert (names, given["check"], given["tags"]) == (["a"], True, ["base_system", "docker_engine"])
    assert given["variables"]["_platform_steps"] == {"a": ["base_system", "docker_engine"]}
    assert given["variables"]["_platform_disruptive"] == ["a"]
    assert given.get("log") is None


def test_changed_lines_are_shown_with_context(show):
    """As a unified diff, by role; a missing end of the last line counts."""
    lines = [f"{number}\n" for number in range(100)]
    before, after = "".join(lines), "".join([*lines[:50], "new\n", *lines[50:]])
    diffs, _ = show(changed(before, after), changed("a\n", "a", role="docker_engine", path="/etc/y"))

    assert [(each.role, each.files[0].path) for each in diffs] == [
        ("base_system", "/etc/x"),
        ("docker_engine", "/etc/y"),
    ]
    assert diffs[0].files[0].diff.split("\n") == ["@@ -48,6 +48,7 @@", " 47", " 48", " 49", "+new", " 50", " 51", " 52"]
    assert diffs[1].files[0].diff.split("\n") == ["@@ -1 +1 @@", "-a", "+a", "\\ No newline at end of file"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"x = 1\n# {PASSWORD}\n", "x = 2\n"),
        ("x = 1\nregistry_token: somebody-elses\n", "x = 2\nregistry_token: somebody-elses-new\n"),
        ("x = 1\nhttp://bob:hunter2@proxy:3128/\n", "x = 2\n"),
        ("x = 1\n-----BEGIN PRIVATE KEY-----\nAAAA\nBBBB\n-----END PRIVATE KEY-----\n", "x = 2\n"),
    ],
)
def test_secrets_are_removed_and_the_rest_is_shown(show, before, after):
    """Known ones, those under telling names, in addresses, and keys of which a diff shows some lines only."""
    diffs, _ = show(changed(before, after))
    shown = diffs[0].files[0].diff

    assert "-x = 1" in shown
    assert "+x = 2" in shown
    assert not any(secret in shown for secret in (PASSWORD, "somebody-elses", "hunter2", "AAAA", "BBBB"))


def test_a_file_that_differs_only_in_a_secret_is_reported(show):
    """An empty diff would look like a mistake."""
    diffs, _ = show(changed("password: one-secret\n", "password: other-secret\n"))

    assert (diffs[0].files[0].diff, diffs[0].files[0].note) == (
        "",
        "content is not shown, because it may contain secrets",
    )


def test_a_file_readable_by_root_only_is_not_shown(show):
    """Whatever is in it: who set its mode had a reason."""
    diffs, _ = show(
        changed("aaa\n", "bbb\n", "/etc/docker/daemon.json", "docker_engine"), private=["/etc/docker/daemon.json"]
    )

    assert diffs[1].files[0].diff == ""
    assert "secrets" in diffs[1].files[0].note


def test_a_censored_task_is_reported_without_content(show):
    """Once, also when it has many items."""
    one = Difference("a", "docker_engine", "Log in to the registries", withheld="it may contain secrets")
    diffs, _ = show(one, one)

    assert [(file.path, file.diff) for file in diffs[1].files] == [("Log in to the registries", "")]
    assert diffs[1].files[0].note == "content is not shown, because it may contain secrets"


def test_control_characters_of_files_are_replaced(show):
    """Files of others may hold anything, bytes that are no text among it."""
    diffs, _ = show(changed("\x1b]0;owned\x07\udcff\r\n", "fine\n"))

    assert diffs[0].files[0].diff.split("\n")[1] == r"-\x1b]0;owned\x07\udcff\r"


def test_receipts_are_not_part_of_a_diff(show):
    """They are written after every step; their own folder is."""
    diffs, _ = show(
        changed("{}", "{ }", "/var/lib/provision/receipts/base_system.json"),
        changed("1\n", "2\n", "/var/lib/provision/container_ssh/ssh_config"),
    )

    assert [file.path for file in diffs[0].files] == ["/var/lib/provision/container_ssh/ssh_config"]


def test_a_failed_role_has_a_note_and_earlier_diffs_are_shown(show):
    """What comes after it says why it is missing; secrets in the message are taken out."""
    error = Failure("docker_engine", "Write", f"no space for {PASSWORD}", "", None)
    ended = (RoleReport("base_system", RoleStatus.CHANGED), RoleReport("docker_engine", RoleStatus.FAILED))
    diffs, _ = show(changed("1\n", "2\n"), node=NodeReport("a", NodeStatus.FAILED, ended, error))

    assert (len(diffs[0].files), diffs[0].note) == (1, "")
    assert diffs[1].note == "could not be compared: Write: no space for [removed]"

    first = Failure("base_system", "Look", "nothing is there", "", None)
    diffs, _ = show(node=NodeReport("a", NodeStatus.FAILED, (RoleReport("base_system", RoleStatus.FAILED),), first))
    assert diffs[0].note == "could not be compared: Look: nothing is there"
    assert diffs[1].note == "could not be compared, because base_system failed before it"

    diffs, _ = show(node=NodeReport("a", NodeStatus.UNREACHABLE, (), Failure(None, "Look", "it is lost", "", None)))
    assert {each.note for each in diffs} == {"could not be compared, because Ansible failed before it: it is lost"}


def test_a_failed_ansible_run_does_not_fail_the_plan(show):
    """Of its output nothing is shown: secrets may be in it. Ctrl-C does end it."""
    diffs, _ = show(raises=ProvisionError("Ansible stopped before it ended", output=PASSWORD))

    assert [each.note for each in diffs] == ["could not be compared: Ansible stopped before it ended"] * 2
    assert PASSWORD not in repr(diffs)
    with pytest.raises(Interrupted):
        show(raises=Interrupted("interrupted; nothing was changed"))
