"""The report of an apply, from Ansible's events."""

import pytest

from provision import engine
from provision.engine import Collector, Event
from provision.model import Difference, NodeStatus, RoleStatus


def ran(kind, host="gpu1", role="docker_engine", task="Install packages", action="ansible.builtin.apt", **result):
    """One runner event as ansible-runner hands it over."""
    data = {"host": host, "role": role, "task": f"{role} : {task}", "task_action": action, "res": result}
    return {"event": f"runner_on_{kind}", "event_data": data}


def collect(*events, nodes=("gpu1", "gpu2"), failures=None, dark=None, changed=None, on_event=None):
    """Feed events and the final counts to a collector and return its report."""
    collector = Collector(nodes, on_event)
    for event in events:
        collector.handle(event)
    collector.settle(failures or {}, dark or {}, changed or {})
    collector.handle({"event": "playbook_on_stats", "event_data": {}})
    return collector.report(1.0)


def test_unchanged_tasks_leave_the_node_unchanged():
    """A converged node is reported as unchanged, role by role."""
    report = collect(ran("ok", changed=False), ran("ok", host="gpu2", changed=False))

    assert report.ok
    assert [node.status for node in report.nodes] == [NodeStatus.UNCHANGED, NodeStatus.UNCHANGED]
    assert report.nodes[0].roles[0].status is RoleStatus.UNCHANGED


def test_a_change_without_an_event_is_counted():
    """Ansible's own count at the end decides: a node that was changed is never called unchanged."""
    report = collect(ran("ok", changed=False), ran("ok", host="gpu2", changed=False), changed={"gpu2": 1})

    assert [node.status for node in report.nodes] == [NodeStatus.UNCHANGED, NodeStatus.CHANGED]


def test_a_change_is_reported_with_the_task_as_reason():
    """A role that changed something says which task did."""
    report = collect(ran("ok", changed=True), ran("ok", task="Start docker", changed=False))

    role = report.nodes[0].roles[0]
    assert (role.status, role.reasons) == (RoleStatus.CHANGED, ("Install packages",))
    assert report.nodes[0].status is NodeStatus.CHANGED


def test_a_failure_has_role_task_message_output_and_remedy():
    """A failing node says where and why it stopped, and what to do; the other node is not touched by it."""
    report = collect(
        ran("failed", msg="cannot write\nmore", stderr="write: No space left on device"),
        ran("ok", host="gpu2", changed=False),
        failures={"gpu1": 1},
    )

    error = report.nodes[0].error
    assert not report.ok
    assert report.nodes[1].status is NodeStatus.UNCHANGED
    assert (error.role, error.task, error.message) == ("docker_engine", "Install packages", "cannot write")
    assert "No space left on device" in error.output
    assert "disk is full" in error.remedy


@pytest.mark.parametrize(
    ("reason", "code", "remedy"),
    [
        ("kernel.module.not_built", "kernel.module.not_built", "Choose a kernel"),
        ("rescue.reverted", "rescue.reverted", "Correct the setting"),
        ("made up by the node", "", ""),
        (["kernel.module.not_built"], "", ""),
    ],
)
def test_a_failure_of_a_module_has_its_code_and_the_remedy_of_the_code(reason, code, remedy):
    """Scripts rely on the code; a code that does not exist is not passed on."""
    error = collect(ran("failed", msg="refused", reason=reason), failures={"gpu1": 1}).nodes[0].error

    assert (error.code, (error.remedy or "").startswith(remedy)) == (code, True)


TOKEN = "ghp_" + "a1B2" * 9
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\n" + "QyNTUxOQAAACD0123\n" * 20 + "-----END OPENSSH PRIVATE KEY-----"


@pytest.mark.parametrize("kind", ["failed", "unreachable"])
def test_a_failure_contains_no_secret(kind):
    """Tokens and keys that a task printed are removed, also where only the end of the output is reported."""
    report = collect(ran(kind, msg=f"exit 1: curl {TOKEN}\n{KEY}", stderr=KEY), failures={"gpu1": 1}, dark={"gpu1": 1})

    error = report.nodes[0].error
    assert "exit 1" in error.message
    assert [word for word in (TOKEN, "QyNTUxOQ") if word in error.message + error.output] == []


def test_the_log_of_an_apply_contains_no_secret(tmp_path):
    """Tokens and keys in Ansible's output are removed before it is stored; a key can span several events."""
    assert engine._write_log(tmp_path / "apply-1.log", ["TASK [x]", f"token {TOKEN}", *KEY.splitlines(), "ok"]) == ""

    assert (tmp_path / "apply-1.log").read_text() == "TASK [x]\ntoken [removed]\n[removed]\nok\n"


def test_a_rescued_failure_is_no_failure():
    """What a role itself repaired does not count against the node."""
    report = collect(ran("failed", msg="first try"), ran("ok", task="Second try", changed=True))

    assert report.ok
    assert report.nodes[0].error is None
    assert report.nodes[0].status is NodeStatus.CHANGED


def test_an_ignored_failure_is_no_failure():
    """A task whose errors are ignored does not fail the node."""
    event = ran("failed", msg="whatever")
    event["event_data"]["ignore_errors"] = True

    assert collect(event).ok


def test_a_lost_node_is_unreachable_with_role_and_task():
    """A node whose power is pulled is reported with the role and task it was lost in."""
    report = collect(ran("unreachable", msg="Connection timed out"), dark={"gpu1": 1})

    node = report.nodes[0]
    assert node.status is NodeStatus.UNREACHABLE
    assert (node.error.role, node.error.task) == ("docker_engine", "Install packages")
    assert "apply again" in node.error.remedy


UNPROTECTED = """Failed to connect to the host via ssh: @@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
Permissions 0777 for '/home/op/key' are too open.
This private key will be ignored.
Load key "/home/op/key": bad permissions
root@10.0.0.1: Permission denied (publickey)."""


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (UNPROTECTED, "run chmod 600 on the file"),
        ("Failed to connect to the host via ssh: root@10.0.0.1: Permission denied (publickey).", "ansible_user"),
        ("Failed to connect to the host via ssh: Host key verification failed.", "--replace-key"),
    ],
    ids=["key open to others", "login", "host key"],
)
def test_a_refused_login_is_not_a_lost_connection(text, remedy):
    """The connection did not break, and the node is up: the message has ssh's reason, and the remedy is for that."""
    error = collect(ran("unreachable", msg=text), dark={"gpu1": 1}).nodes[0].error

    assert error.message == f"Ansible could not log in: {text.splitlines()[-1]}"
    assert remedy in error.remedy
    assert "node is up" not in error.remedy


def test_only_tasks_that_reach_the_node_are_counted():
    """The number of remote tasks leaves out what runs on the controller."""
    events = [ran("ok", action=a) for a in ("ansible.builtin.set_fact", "assert", "ansible.builtin.copy", "setup")]

    assert collect(*events).tasks == 2


def test_progress_is_reported_for_every_step():
    """Callers that show progress get node, role, task and status as they happen."""
    heard = []
    collect(ran("start"), ran("ok", changed=True), on_event=heard.append)

    assert heard == [
        Event("gpu1", "docker_engine", "Install packages", "start"),
        Event("gpu1", "docker_engine", "Install packages", "changed"),
    ]


HIDDEN = {"censored": "the output has been hidden due to the fact that 'no_log: true' was specified for this result"}


def compared(*events):
    """The differences that a collector keeps of some events."""
    collector = Collector(["gpu1", "gpu2"], compare=True)
    for event in events:
        collector.handle(event)
    return collector.report(1.0).differences


def entry(path, before, after):
    """A difference as a module reports it."""
    return {"before_header": path, "after_header": path, "before": before, "after": after}


def test_a_check_mode_run_records_pending_changes():
    """By node and role: one entry or many, of a task or of its items; what stays as it is is not there."""
    many = [entry("/etc/a", "1\n", "2\n"), entry("/etc/same", "1\n", "1\n"), {}]
    items = [{"changed": True, "diff": entry("/etc/b", "", "x")}, {"changed": False, "diff": entry("/etc/c", "", "x")}]
    differences = compared(
        ran("ok", changed=True, diff=many),
        ran("ok", host="gpu2", role="base_system", changed=True, results=items),
        ran("ok", changed=True, diff={"before": {"state": "absent"}, "after": {"state": "file"}}),
        ran("ok", changed=False, diff=entry("/etc/unchanged", "1", "2")),
        ran("ok", changed=True, diff={"dst_larger": 100, "src_binary": 1}),
    )

    assert differences == (
        Difference("gpu1", "docker_engine", "/etc/a", "1\n", "2\n"),
        Difference("gpu2", "base_system", "/etc/b", "", "x"),
        Difference(
            "gpu1", "docker_engine", "Install packages", '{\n  "state": "absent"\n}\n', '{\n  "state": "file"\n}\n'
        ),
        Difference("gpu1", "docker_engine", "Install packages", withheld="it is binary or too large"),
    )


def test_a_change_of_a_censored_task_is_reported():
    """Otherwise it would look as if there were nothing to see."""
    event = ran("ok", **HIDDEN) | {"stdout": "changed: [gpu1] => {}"}
    unchanged = ran("ok", **HIDDEN) | {"stdout": "ok: [gpu1] => {}"}
    differences = compared(event, unchanged)

    assert differences == (Difference("gpu1", "docker_engine", "Install packages", withheld="it may contain secrets"),)


def test_an_apply_records_no_file_content():
    """It would be for nothing, and secrets may be in it; neither are they where a difference is printed."""
    assert collect(ran("ok", changed=True, diff=entry("/etc/a", "", "hunter2\n"))).differences == ()
    assert "hunter2" not in repr(compared(ran("ok", changed=True, diff=entry("/etc/a", "", "hunter2\n"))))
