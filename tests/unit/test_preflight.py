"""The preflight of a plan: only what has steps is asked, and apply changes nothing while there is a problem."""

from __future__ import annotations

import dataclasses
import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from provision import connectors, engine, workflow
from provision.components import ROLES
from provision.errors import ConnectionFailed, ProvisionError
from provision.inventory.role_files import defaults
from provision.model import ApplyReport, Cluster, NodePlan, NodeReport, NodeStatus, Plan, PreflightCode, Step, StepClass
from provision.report.plan_report import as_document, as_text, problems_text
from provision.resources import roles_folder
from provision.testing import FakeConnector
from provision.workflow import node_locks
from provision.workflow.plan import PlanResult
from tests.support.reasons import plain
from tests.unit.planning.conftest import cluster_of, facts_of
from tests.unit.test_converge import Locks

GOOD = {"packages": {"docker.io": "20.10", "iptables": None}, "install": [], "sources": [], "conflict": ""}


@pytest.fixture
def asked(monkeypatch):
    """What the nodes answer, by name; returned is which were asked, and what."""
    answers: dict[str, object] = {}
    requests: dict[str, dict] = {}

    def each(nodes, function, **_):
        results = {}
        for node in nodes:
            answer = answers.get(node.name, GOOD)
            text = answer if isinstance(answer, str | Exception) else json.dumps(answer)
            way = FakeConnector({".pyz package-preflight": text, "sha256sum": ""}, node.name)
            processes = []
            start = way.start
            way.start = lambda script, start=start, processes=processes, **more: (
                processes.append(start(script, **more)) or processes[-1]
            )
            try:
                results[node.name] = function(way)
            except ProvisionError as error:
                results[node.name] = error
            requests[node.name] = json.loads(processes[0].stdin) if processes else {}
        return results

    monkeypatch.setattr(connectors, "each", each)
    return answers, requests


def look(*roles, nodes=("gpu1", "gpu2"), bare=True, **variables):
    """A cluster snapshot whose first node has steps of these roles, and the others none."""
    own = {"training_image_reference": "r:5000/t:1", **variables}
    stated = cluster_of(len(nodes), **own)
    cluster = cluster_of(len(nodes), **{**defaults(roles_folder()), **own})
    facts = {name: facts_of(cluster, name) for name in nodes}
    if bare:
        facts = {name: dataclasses.replace(fact, packages={}, image=None) for name, fact in facts.items()}
    steps = tuple(Step(role, StepClass.SAFE, (plain("because"),)) for role in roles)
    plans = tuple(NodePlan(name, steps if name == nodes[0] else ()) for name in nodes)
    return PlanResult(cluster, Plan(plans), facts, {}, stated=stated)


def problems(seen):
    return {(item.code.value, item.role, item.object) for node in seen.plan.nodes for item in node.problems}


def test_a_converged_plan_contacts_no_node(asked):
    """It costs nothing: it is the same object."""
    seen = look()

    assert workflow.preflight(seen) is seen
    assert asked[1] == {}


def test_only_nodes_with_something_to_install_are_contacted(asked):
    """Steps that install nothing need no session."""
    workflow.preflight(look("docker_engine"))
    assert list(asked[1]) == ["gpu1"]
    asked[1].clear()
    seen = look("container_ssh", "training_image", bare=False)
    workflow.preflight(seen)
    workflow.preflight(look("docker_engine"), read_only=True)
    assert asked[1] == {}


def test_a_repository_without_slurmdbd_is_reported_before_anything_changes(asked):
    """The controller alone requires it."""
    answers, requests = asked
    known = dict.fromkeys(("munge", "slurm-client", "slurmd", "slurmctld", "mariadb-server"), "1")
    answers["gpu1"] = GOOD | {"packages": {**known, "slurmdbd": None}}
    seen = workflow.preflight(look("slurm", cluster_engine="slurm", slurm_accounting="slurmdbd"))

    assert problems(seen) == {(PreflightCode.PACKAGE_MISSING.value, "slurm", "slurmdbd")}
    assert set(requests["gpu1"]["packages"]) == {*known, "slurmdbd"}


def test_the_preflight_report_lists_packages_and_files_by_role(asked):
    """With versions where they are known; a package only once."""
    answers, _ = asked
    answers["gpu1"] = GOOD | {
        "packages": {"docker.io": "20.10", "iptables": "1.8", "apparmor": "3", "pigz": "2"},
        "install": [{"name": "docker.io", "version": "20.10"}, {"name": "runc", "version": "1.1"}],
    }
    seen = workflow.preflight(look("docker_engine", "training_image", "training_container"))
    node = as_document(seen.plan)["nodes"][0]
    text = as_text(seen.plan)

    assert node["steps"][0]["packages"][0] == {"name": "docker.io", "version": "20.10"}
    assert "/etc/docker/daemon.json" in node["steps"][0]["files"]
    assert node["steps"][1]["packages"] == []
    assert node["dependencies"] == [{"name": "runc", "version": "1.1"}]
    assert "+ installs docker.io 20.10, " in text
    assert "with 1 dependency: runc" in text
    assert max(map(len, text.splitlines())) <= 80
    assert problems(seen) == set()


def test_problems_of_variables_and_nodes_are_reported_together(asked):
    """The whole list at once, each with a remedy; what follows from another problem is not reported again."""
    answers, requests = asked
    answers["gpu1"] = GOOD | {"image": {"code": "refused", "reason": "401"}}
    seen = workflow.preflight(
        look("nvidia_container", "docker_engine", "training_image", nvidia_container_repository_uri="https://m/x")
    )

    assert problems(seen) == {
        ("variable.missing", "nvidia_container", "nvidia_container_repository_key"),
        ("package.missing", "docker_engine", "apparmor, iptables, pigz"),
        ("image.refused", "training_image", "r:5000/t:1"),
    }
    assert all(item.remedy for node in seen.plan.nodes for item in node.problems)
    assert requests["gpu1"]["repositories"] == []
    assert problems_text(seen.plan).startswith("Preflight: 3 problems")
    assert as_document(seen.plan)["problems"][0]["nodes"] == ["gpu1"]


@pytest.mark.parametrize(
    "answer",
    ["", "nonsense", '{"packages": 3}', '{"image": {"code": "fine"}}', ConnectionFailed("gone"), "[" * 100_000],
)
def test_a_node_with_an_invalid_answer_is_not_changed(asked, answer):
    """Whether an apply would fail there is unknown."""
    asked[0]["gpu1"] = answer
    seen = workflow.preflight(look("docker_engine"))

    assert [item.code for node in seen.plan.nodes for item in node.problems] == [PreflightCode.NODE_UNCHECKED]


def test_passwords_are_separate_from_addresses(asked):
    """They are on no command line, and in no source that others may read."""
    key = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDM=\n-----END PGP PUBLIC KEY BLOCK-----"
    extra = {"name": "site", "uris": "https://bob:s3cret@m/x", "suites": "/", "key": key}
    workflow.preflight(look("docker_engine", platform_extra_repositories=[extra]))
    sent = asked[1]["gpu1"]["repositories"][0]

    assert "s3cret" not in sent["source"] + sent["uri"]
    assert sent["auth"] == "machine https://m/x login bob password s3cret\n"


@pytest.fixture
def played(monkeypatch, tmp_path):
    """Which nodes Ansible was run on, and which were locked for it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    names: list[str] = []
    locked: list[str] = []

    def run_playbook(_inventory, nodes, **_):
        names.extend(nodes)
        return ApplyReport(tuple(NodeReport(name, NodeStatus.CHANGED, ()) for name in nodes), 1.0)

    @contextmanager
    def acquire(nodes, **_):
        locked.extend(node.name for node in nodes)
        yield Locks()

    monkeypatch.setattr(engine, "run_playbook", run_playbook)
    monkeypatch.setattr(node_locks, "acquire", acquire)
    return names, locked


def test_apply_changes_no_node_while_one_has_a_problem(asked, played):
    """The others are skipped, with the reason; the exit code is not 0."""
    del asked
    seen = look("training_image", training_image_reference="")
    steps = seen.plan.nodes[0].steps
    plans = [workflow.preflight(seen).plan.nodes[0], NodePlan("gpu2", steps)]
    result = dataclasses.replace(seen, plan=Plan(tuple(plans)))
    report = workflow.apply(seen.cluster, seen.cluster.nodes, result=result)

    assert not report.ok
    assert [node.status for node in report.nodes] == [NodeStatus.FAILED, NodeStatus.SKIPPED]
    assert "--keep-going." in {word for role in report.nodes[1].roles for word in role.remedy.split()}
    assert report.nodes[0].error.task == "preflight"
    assert "group_vars/all.yml" in report.nodes[0].error.remedy
    assert played == ([], [])


OUT_OF_REACH = {"name": "x", "uri": "https://m/x", "code": "unreachable", "reason": "timed out"}


@pytest.mark.parametrize(
    ("roles", "variables", "answer", "code"),
    [
        (("training_image",), {"training_image_reference": ""}, {}, "variable.missing"),
        (("docker_engine",), {"docker_engine_data_root": "{{ undefined_here }}"}, {}, "variable.template"),
        (("docker_engine",), {}, {"packages": {}}, "package.missing"),
        (("docker_engine",), {}, {"sources": [OUT_OF_REACH]}, "repository.unreachable"),
        (("training_image",), {}, {"image": {"code": "unreachable", "reason": "timed out"}}, "registry.unreachable"),
        (("training_image",), {}, {"image": {"code": "refused", "reason": "401"}}, "image.refused"),
    ],
)
def test_an_apply_that_would_fail_changes_nothing(asked, played, roles, variables, answer, code):
    """Whatever the problem is, it is found before Ansible is started or a node is locked."""
    asked[0]["gpu1"] = GOOD | answer
    seen = workflow.preflight(look(*roles, **variables))
    report = workflow.apply(seen.cluster, seen.cluster.nodes, result=seen)

    assert code in {item.code.value for node in seen.plan.nodes for item in node.problems}
    assert not report.ok
    assert played == ([], [])


def test_keep_going_excludes_only_nodes_with_a_problem(asked, played):
    """The exit code shows that they were left out."""
    asked[0]["gpu2"] = ConnectionFailed("the test ends here")
    seen = look("training_image", training_image_reference="")
    plans = (workflow.preflight(seen).plan.nodes[0], NodePlan("gpu2", seen.plan.nodes[0].steps))
    result = dataclasses.replace(seen, plan=Plan(plans))
    report = workflow.apply(
        seen.cluster, seen.cluster.nodes, waves=workflow.WaveOptions(keep_going=True), result=result
    )

    assert played[1] == ["gpu2"]
    assert not report.ok
    assert report.nodes[0].error.task == "preflight"


def test_a_node_with_waiting_steps_does_not_stop_other_nodes(asked, played):
    """Nothing would be changed there now, whatever its preflight found."""
    del asked, played
    seen = look("training_image", training_image_reference="")
    plan = workflow.preflight(seen).plan.nodes[0]
    steps = tuple(dataclasses.replace(step, waits_for=("a job",)) for step in plan.steps)
    waiting = dataclasses.replace(plan, steps=steps)

    assert workflow.blocked(dataclasses.replace(seen, plan=Plan((plan,)))) == ["gpu1"]
    assert workflow.blocked(dataclasses.replace(seen, plan=Plan((waiting,)))) == []


def test_every_role_has_a_preflight(asked):
    """No role of site.yml is forgotten."""
    seen = workflow.preflight(look(*ROLES))
    assert [step.role for step in seen.plan.nodes[0].steps] == list(ROLES)
    assert isinstance(seen.cluster, Cluster)
    assert Path(str(seen.cluster.inventory)).name
    assert asked[1]["gpu1"]["image"]["path"] == "t"
