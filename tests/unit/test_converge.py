"""Apply before and beside Ansible: who may work on an inventory, on which nodes, and where its logs are."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from provision import connectors, engine, workflow
from provision.components import JOB_ROLES
from provision.errors import LockedError, ProvisionError, UsageError
from provision.model import ApplyReport, Cluster, CommandResult, Failure, NodeReport, NodeStatus, RoleStatus
from provision.report.apply_report import as_document, as_text, from_document
from provision.testing import FakeConnector, make_node
from provision.workflow import node_locks, node_results
from tests.support.probe import DEBIAN, answer, system_answer

CENTOS = 'ID="centos"\nVERSION_ID="6"\nPRETTY_NAME="CentOS release 6.10 (Final)"\nprobe_python3=\n'
HOLDER = """
import sys
from pathlib import Path
from provision.testing import make_node
from provision.model import Cluster
from provision.workflow.inventory_state import inventory_lock
with inventory_lock(Cluster("c", Path(sys.argv[1]), (make_node("a"),)), "apply"):
    print("held", flush=True)
    sys.stdin.read()
"""


WITHOUT_IMAGE = dict.fromkeys(map("{}_enabled".format, JOB_ROLES), False)


class Locks:
    """Locks of nodes that no other process uses."""

    def __init__(self):
        self.refused, self.failed, self.warnings, self.notes, self.ends = {}, {}, {}, [], {}

    def lost(self):
        return {}

    def note(self, node, text):
        self.notes.append((node, text))

    def finish(self, node, outcome):
        self.ends[node] = outcome


@pytest.fixture
def answers(monkeypatch, tmp_path):
    """What each node prints of its system when probed; Ansible does not run, and the nodes it would reach are returned.

    After a run a node has nothing left to be done: its roles are switched off for the looks that follow.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    said: dict[str, str] = {}
    reached: list[str] = []

    def install(name, _script, _stdin):
        if "without a mirror" in said[name]:
            return CommandResult("", "E: no mirror\n", 100)
        said[name] = DEBIAN
        return CommandResult("", "/usr/bin/python3\n", 0)

    def each(nodes, function, **_):
        results = {}
        for node in nodes:
            system = said.get(node.name, DEBIAN)
            scripts = {
                ".pyz probe": answer({"system": system}),
                ".pyz package-preflight": "{}\n",
                "sha256sum": "",
                "provision-probe": system_answer(system),
                "install python3": partial(install, node.name),
            }
            try:
                connector = FakeConnector(scripts, node.name)
                connector.python = node.connection.python
                results[node.name] = function(connector)
            except ProvisionError as error:
                results[node.name] = error
        return results

    def run_playbook(_inventory, names, *, log, **_):
        reached.extend(names)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"log of {' '.join(names)}\n")
        return ApplyReport(tuple(NodeReport(name, NodeStatus.UNCHANGED, ()) for name in names), 1.0)

    @contextmanager
    def acquire(_nodes, *, command, on_event):
        assert command.startswith("provision apply")
        assert on_event is None or callable(on_event)
        yield Locks()

    monkeypatch.setattr(connectors, "each", each)
    monkeypatch.setattr(engine, "run_playbook", run_playbook)
    monkeypatch.setattr(node_locks, "acquire", acquire)
    return said, reached


def cluster(path, *nodes):
    """A cluster of an inventory at `path`."""
    return Cluster("c", path, nodes or (make_node("a"), make_node("b")))


def test_an_unsupported_system_is_reported_before_ansible_starts(answers, tmp_path):
    """Its Python may be too old for Ansible to say even that; the other node goes on."""
    said, reached = answers
    said["a"] = CENTOS
    full = cluster(tmp_path / "hosts.yml")
    report = workflow.apply(full, full.nodes)

    assert reached == ["b"]
    assert report.nodes[0].status is NodeStatus.FAILED
    assert "CentOS release 6.10 (Final)" in report.nodes[0].error.message
    assert ", ".join(workflow.supported_systems()) in report.nodes[0].error.message
    assert "add roles/platform/vars/el_6.yml" in report.nodes[0].error.remedy


def test_the_final_probe_is_shown_in_the_progress(answers, tmp_path):
    """Ansible has ended then, and the apply has not."""
    full, events = cluster(tmp_path / "hosts.yml"), []
    workflow.apply(full, full.nodes, on_event=events.append)

    assert answers[1] == ["a", "b"]
    begun = [event.task for event in events if event.node == "a" and event.status == "start"]
    assert begun == ["probe", "probe", "final probe"]


def test_python_is_installed_before_all_other_steps(answers, tmp_path):
    """The plan names the first step only; the apply probes again and runs all that is needed then."""
    said, reached = answers
    said["a"] = DEBIAN.replace("/usr/bin/python3", "")
    full, events = cluster(tmp_path / "hosts.yml", make_node("a", **WITHOUT_IMAGE)), []
    plan = workflow.probe_and_plan(full, full.nodes).plan.nodes[0]
    workflow.apply(full, full.nodes, on_event=events.append)

    assert [(step.role, [why.code for why in step.reasons]) for step in plan.steps] == [
        ("platform", ["plan.python_missing"])
    ]
    assert reached == ["a"]
    begun = [event.task for event in events if event.status == "start"]
    assert begun == ["probe", "install python3", "probe", "probe", "final probe"]


def test_python_is_installed_before_a_single_step(answers, tmp_path):
    said, reached = answers
    said["a"] = DEBIAN.replace("/usr/bin/python3", "")
    full = cluster(tmp_path / "hosts.yml", make_node("a", **WITHOUT_IMAGE))
    report = workflow.apply(full, full.nodes, steps=["platform_repositories"])

    assert reached == ["a"]
    assert report.ok, report


def test_a_failed_installation_of_python_is_reported(answers, tmp_path):
    """The other node continues."""
    said, reached = answers
    said["a"] = DEBIAN.replace("/usr/bin/python3", "").replace("Debian GNU/Linux 12", "Debian without a mirror")
    full = cluster(tmp_path / "hosts.yml")
    report = workflow.apply(full, full.nodes)

    assert reached == ["b"]
    assert report.nodes[0].status is NodeStatus.FAILED
    assert "python3 cannot be installed" in report.nodes[0].error.message
    assert "no mirror" in report.nodes[0].error.output


def test_a_saved_plan_ends_with_the_installation_of_python(answers, tmp_path):
    """`apply --plan` runs exactly the plan: the operator has not seen the later steps."""
    said, reached = answers
    said["a"] = DEBIAN.replace("/usr/bin/python3", "")
    full = cluster(tmp_path / "hosts.yml", make_node("a", **WITHOUT_IMAGE), make_node("b", **WITHOUT_IMAGE))
    report = workflow.apply(full, full.nodes, waves=workflow.WaveOptions(only_planned=True))

    assert reached == ["b"]
    changed = [role.role for role in report.nodes[0].roles if role.status is RoleStatus.CHANGED]
    assert (report.nodes[0].status, changed) == (NodeStatus.CHANGED, ["platform"])
    assert [warning.partition(":")[0] for warning in report.warnings] == ["a"]


@pytest.mark.parametrize(("keep_going", "runs"), [(False, []), (True, ["b"])])
def test_a_preflight_problem_after_the_installation_of_python_stops_the_apply(answers, tmp_path, keep_going, runs):
    """Apply changes nothing while the preflight finds a problem, also when it can find it only then."""
    said, reached = answers
    said["a"] = DEBIAN.replace("/usr/bin/python3", "")
    full = cluster(tmp_path / "hosts.yml", make_node("a"), make_node("b", **WITHOUT_IMAGE))
    report = workflow.apply(full, full.nodes, waves=workflow.WaveOptions(keep_going=keep_going))

    assert reached == runs
    assert (report.nodes[0].status, report.nodes[0].error.task) == (NodeStatus.FAILED, "preflight")
    assert (report.nodes[1].status is NodeStatus.SKIPPED) is not keep_going


def test_a_node_whose_interpreter_is_missing_is_not_changed(answers, tmp_path):
    """The inventory names an interpreter that the operator provides."""
    said, reached = answers
    said["a"] = DEBIAN.replace("/usr/bin/python3", "")
    full = cluster(tmp_path / "hosts.yml", make_node("a", ansible_python_interpreter="/opt/python"))
    report = workflow.apply(full, full.nodes)

    assert reached == []
    assert "there is no /opt/python on this node" in report.nodes[0].error.message


def test_a_second_apply_is_refused_with_the_lock_holder(answers, tmp_path):
    """Two applies of one inventory would undo each other's steps; another inventory is free."""
    _, reached = answers
    path = tmp_path / "prod" / "hosts.yml"
    path.parent.mkdir()
    path.write_text("")
    environment = os.environ | {"PYTHONPATH": str(Path(connectors.__file__).parents[2])}
    argv = [sys.executable, "-c", HOLDER, str(path.parent)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(LockedError, match=f"process {other.pid} of ") as refused:
            workflow.apply(cluster(path), cluster(path).nodes)
        workflow.apply(cluster(tmp_path / "test.yml", make_node("c")), [make_node("c")])
        other.communicate(timeout=20)
    workflow.apply(cluster(path, make_node("d")), [make_node("d")])

    assert refused.value.exit_code == 4
    assert reached == ["c", "d"]


def test_an_unwritable_home_is_a_warning(answers, tmp_path, monkeypatch):
    """The nodes are repaired all the same."""
    _, reached = answers
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(engine, "run_playbook", lambda _, names, **__: reached.extend(names) or ApplyReport((), 1.0))
    report = workflow.apply(cluster(tmp_path / "hosts.yml"), [make_node("a")])

    assert reached == ["a"]
    assert any("is not locked" in warning for warning in report.warnings)


def test_a_bundle_lists_used_degraded_nodes(answers, tmp_path):
    """However many applies came after it."""
    said, _ = answers
    mine = cluster(tmp_path / "hosts.yml")
    assert workflow.note_degraded(mine, "run", [("a", "nv_peer_mem did not come up")]) == ""
    for number in range(6):
        (workflow.log_folder(mine) / f"apply-2026112{number}T100000-1.log").write_text(f"apply {number}\n")
    said |= {"a": "", "b": ""}
    workflow.support_bundle(mine, tmp_path / "b.tar.gz")
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        texts = [tar.extractfile(member).read().decode() for member in tar.getmembers()]

    assert any("nv_peer_mem did not come up" in text for text in texts)
    assert sum(text.startswith("apply ") for text in texts) == 5


@pytest.mark.usefixtures("answers")
def test_the_record_of_degraded_nodes_is_limited(tmp_path):
    """A host file made every minute fills no disk; the newest entries are there, each on a line of its own."""
    mine = cluster(tmp_path / "hosts.yml")
    for number in range(600):
        assert workflow.note_degraded(mine, "hostfile", [("a", f"{number} {'x' * 8000}")]) == ""
    folder = workflow.log_folder(mine)
    lines = (folder / "degraded.log").read_text().splitlines()

    assert json.loads(lines[-1])["nodes"]["a"].startswith("599 ")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_100_000
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


def test_a_bundle_holds_only_the_logs_of_its_own_inventory(answers, tmp_path):
    """Host names and outputs of another cluster stay private."""
    said, _ = answers
    one = cluster(tmp_path / "one.yml", make_node("of-one"))
    other = cluster(tmp_path / "other.yml", make_node("of-other"))
    workflow.apply(one, one.nodes)
    workflow.apply(other, other.nodes)
    said |= {"a": "", "b": ""}
    workflow.support_bundle(one, tmp_path / "b.tar.gz")
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        texts = [tar.extractfile(member).read().decode() for member in tar.getmembers()]

    assert any("log of of-one" in text for text in texts)
    assert not any("of-other" in text for text in texts)


def failing_on(*bad):
    """Ansible that fails on some nodes."""

    def run_playbook(_inventory, names, **_):
        failure = Failure("docker_engine", "Run docker", "docker does not start", "", None)
        return ApplyReport(
            tuple(
                NodeReport(
                    name, NodeStatus.FAILED if name in bad else NodeStatus.CHANGED, (), failure if name in bad else None
                )
                for name in names
            ),
            1.0,
        )

    return run_playbook


@pytest.mark.usefixtures("answers")
def test_a_canary_that_fails_skips_the_other_nodes(tmp_path, monkeypatch):
    """Their state is `skipped` in text and JSON, the cause is the failed wave, and no remedy disturbs a job."""
    monkeypatch.setattr(engine, "run_playbook", failing_on("a"))
    full = cluster(tmp_path / "hosts.yml", *(make_node(name) for name in "abc"))
    report = workflow.apply(full, full.nodes, waves=workflow.WaveOptions(sizes="1,100%"))

    document, text = as_document(report), as_text(report)
    assert [node["status"] for node in document["nodes"]] == ["failed", "skipped", "skipped"]
    assert not report.ok
    skipped = document["nodes"][1]["roles"][0]
    assert skipped["status"] == "skipped"
    assert skipped["reasons"][0] == "not started, because a failed and the apply stopped after wave 1 of 2"
    assert skipped["remedy"] == "Fix a, then apply again."
    assert "b, c: skipped\n  not started, because a failed" in text
    assert "jobs" not in text
    assert "--disruptive" not in json.dumps(document) + text
    assert from_document(document) == report


def test_the_node_that_builds_for_others_is_in_the_first_wave(answers, tmp_path, monkeypatch):
    """In the order of the inventory it would be the last."""
    monkeypatch.setattr(engine, "run_playbook", failing_on("c"))
    shared = {"nvidia_driver_source": "distribution", "nvidia_driver_build_node": "c"}
    full = cluster(tmp_path / "hosts.yml", *(make_node(name, **shared) for name in "abc"))
    report = workflow.apply(full, full.nodes, waves=workflow.WaveOptions(sizes="1,100%"))

    assert answers
    status = {node["name"]: node["status"] for node in as_document(report)["nodes"]}
    assert status == {"a": "skipped", "b": "skipped", "c": "failed"}


def test_keys_are_exchanged_once_after_the_last_wave(answers, tmp_path, monkeypatch):
    """On all nodes at once; before it no wave runs it."""
    runs = []

    def run_playbook(_inventory, names, *, variables, **_):
        runs.append({name: variables["_platform_steps"][name] for name in names})
        return ApplyReport(tuple(NodeReport(name, NodeStatus.CHANGED, ()) for name in names), 1.0)

    monkeypatch.setattr(engine, "run_playbook", run_playbook)
    full = cluster(tmp_path / "hosts.yml")
    # What is left is what the look afterwards finds: of a node that never changes, everything.
    monkeypatch.setattr(node_results.NodeResults, "judge", lambda *_, **__: None)
    workflow.apply(full, full.nodes, waves=workflow.WaveOptions(sizes="1"))

    assert answers
    assert [list(run) for run in runs] == [["a"], ["b"], ["a", "b"]]
    assert "container_ssh" not in [role for run in runs[:2] for roles in run.values() for role in roles]
    assert runs[2]["a"][-1] == "container_ssh"


def test_problems_of_the_final_probe_are_failures(answers, tmp_path):
    """Ansible's own “ok” does not count."""
    full = cluster(tmp_path / "hosts.yml", make_node("a"))
    report = workflow.apply(full, full.nodes)

    assert answers[1] == ["a"]
    assert report.nodes[0].status is NodeStatus.FAILED
    assert "the final probe still reports" in report.nodes[0].error.message


@pytest.mark.usefixtures("answers")
def test_a_locked_node_stops_the_apply_before_the_first_step(tmp_path, monkeypatch):
    """The lock holder is named; exit code 4."""

    @contextmanager
    def acquire(_nodes, *, command, on_event):
        assert command
        assert on_event is None
        locks = Locks()
        locks.refused = {"b": LockedError("in use by alice on ops1 (process 4711)", node="b", remedy="Wait.")}
        yield locks

    monkeypatch.setattr(node_locks, "acquire", acquire)
    monkeypatch.setattr(engine, "run_playbook", lambda *_, **__: pytest.fail("something was run"))
    full = cluster(tmp_path / "hosts.yml")
    with pytest.raises(LockedError, match="b: in use by alice") as refused:
        workflow.apply(full, full.nodes)

    assert refused.value.exit_code == 4


def test_a_saved_plan_is_valid_until_its_facts_change(answers, tmp_path):
    """The same look twice holds; another boot of a node does not."""
    full = cluster(tmp_path / "hosts.yml")
    request = workflow.Request(only=("base_system",))
    workflow.save(workflow.probe_and_plan(full, full.nodes, request), tmp_path / "plan.json", request)
    document, again = workflow.read_saved(tmp_path / "plan.json")

    assert again == request
    assert (tmp_path / "plan.json").stat().st_mode & 0o777 == 0o600
    assert workflow.saved_differences(document, workflow.probe_and_plan(full, full.nodes, request)) == []
    answers[0]["b"] = DEBIAN.replace("6.1.0-40", "6.1.0-41")
    assert workflow.saved_differences(document, workflow.probe_and_plan(full, full.nodes, request)) == [
        "b: its inputs changed since the plan was saved"
    ]


@pytest.mark.usefixtures("answers")
def test_a_saved_plan_is_invalid_once_a_variable_of_the_inventory_changes(tmp_path):
    """Also for a node without any receipt. The path of the inventory does not matter: CI checks it out elsewhere."""
    full = cluster(tmp_path / "hosts.yml")
    workflow.save(workflow.probe_and_plan(full, full.nodes), tmp_path / "plan.json", workflow.Request())
    document, request = workflow.read_saved(tmp_path / "plan.json")

    elsewhere = dataclasses.replace(full, inventory=tmp_path / "elsewhere/hosts.yml")
    assert workflow.saved_differences(document, workflow.probe_and_plan(elsewhere, full.nodes, request)) == []
    first, *others = full.nodes
    edited = dataclasses.replace(first, variables={**first.variables, "training_container_shm_size": "2g"})
    changed = dataclasses.replace(full, nodes=(edited, *others))
    assert workflow.saved_differences(document, workflow.probe_and_plan(changed, changed.nodes, request)) == [
        f"{first.name}: its inputs changed since the plan was saved"
    ]


@pytest.mark.usefixtures("answers")
def test_a_saved_plan_does_not_depend_on_the_values_of_secrets(tmp_path):
    """Values of a vault are ordinary strings; a hash of them in the file would let others test guesses."""

    def plan(password):
        logins = [{"registry": "r:5000", "username": "robot", "password_secret": password}]
        hidden = {"vault_registry_password": password, "site_proxy": f"http://robot:{password}@proxy:3128"}
        nodes = [dataclasses.replace(make_node(name), variables={**hidden, "site_logins": logins}) for name in "ab"]
        full = cluster(tmp_path / "hosts.yml", *nodes)
        return workflow.probe_and_plan(full, full.nodes).digests()

    assert plan("one-Secret-4711") == plan("another-Secret-0815")


@pytest.mark.usefixtures("answers")
def test_a_saved_plan_is_not_written_to_a_file_of_another_user(tmp_path):
    """In /tmp others can put files and links under names that can be guessed."""
    full, request = cluster(tmp_path / "hosts.yml"), workflow.Request()
    (tmp_path / ".plan.json.part").symlink_to(tmp_path / "theirs")
    workflow.save(workflow.probe_and_plan(full, full.nodes, request), tmp_path / "plan.json", request)

    assert not (tmp_path / "theirs").exists()
    assert sorted(path.name for path in tmp_path.glob("*plan.json*")) == [".plan.json.part", "plan.json"]
    assert not (tmp_path / "plan.json").is_symlink()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        "[" * 100_000,
        '{"format": 9, "only": [], "forced": [], "disruptive": [], "digests": {}}',
        '{"format": 1, "only": [], "forced": [], "disruptive": [], "digests": {}}',
    ],
    ids=range(6),
)
def test_an_invalid_saved_plan_is_refused(tmp_path, text):
    """No traceback; the remedy is shown."""
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UsageError, match=r"plan\.json is") as refused:
        workflow.read_saved(tmp_path / "plan.json")

    assert "provision plan --out" in refused.value.remedy
