"""The component slurm: its checks, and when its role runs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from provision.checks import judge
from provision.components import COMPONENTS
from provision.components.slurm import COMPONENT, controllers_of, entry_of
from provision.documents import decode
from provision.documents.slurm import SlurmAccounting, SlurmLayout, SlurmNode, SlurmState
from provision.facts import NodeFacts, RawOutput, Unknown
from provision.facts.slurm import SlurmFact
from provision.facts.system import System
from provision.inventory.role_files import systems
from provision.model import CheckResult, CheckStatus, Cluster, PreflightCode
from provision.model.cause import Cause, CauseKind
from provision.model.reason import reason
from provision.planning import plan_node
from provision.planning.requirements import cluster_problems, packages_of, setting_problems
from provision.resources import roles_folder
from tests.support.reasons import shown
from tests.unit.checks.conftest import healthy
from tests.unit.planning.conftest import cluster_of, scene_of

ON: dict[str, Any] = {"cluster_engine": "slurm", "cluster_head": "gpu1"}
SUPPORTED = {"debian 12": "tested"}
LAYOUT = {
    "sockets": 1,
    "cores": 8,
    "threads": 2,
    "memory": 64000,
    "hostname": "gpu1",
    "gpus": [{"minor": 0, "model": "A"}],
}


def layout(**changes: Any) -> SlurmLayout:
    return decode(json.dumps({**LAYOUT, **changes}), SlurmLayout, node="", what="layout")


def cluster(**variables: Any) -> Cluster:
    return cluster_of(2, **{**ON, **variables})


def states(where: Cluster | None = None, **changes: Any) -> dict[str, NodeFacts]:
    """Return the facts of two nodes in a healthy Slurm; `changes` of gpu1, which is the controller and takes jobs."""
    where = where or cluster()
    seen = {f"gpu{n}": SlurmNode("idle", "gpu:g0:1", "root", "none") for n in (1, 2)}
    facts = {}
    for number, name in ((1, "gpu1"), (2, "gpu2")):
        own = SlurmState("22.05.8", name, layout(hostname=name), "aa", None, "", {name: seen[name]}, True)  # noqa: FBT003
        facts[name] = dataclasses.replace(healthy(number), slurm=own)
    entries = {name: entry_of(where.node(name), facts[name], facts[name].slurm.layout) for name in facts}
    first = dataclasses.replace(facts["gpu1"].slurm, **{"recorded": entries, "nodes": seen, **changes})
    return {**facts, "gpu1": dataclasses.replace(facts["gpu1"], slurm=first)}


def judged(name: str = "gpu1", where: Cluster | None = None, **changes: Any) -> dict[str, CheckResult]:
    where = where or cluster()
    all_facts = states(where, **changes)
    results = judge(where.node(name), all_facts[name], where, all_facts=all_facts, supported=SUPPORTED)
    return {result.id: result for result in results if result.id.startswith("slurm.")}


def test_a_healthy_node_passes_every_check() -> None:
    where = cluster(slurm_accounting="slurmdbd")
    answers = {"accounting": SlurmAccounting("", is_registered=True)}

    assert {result.status for result in judged(where=where, **answers).values()} == {CheckStatus.PASS}
    others = judged("gpu2", where, **answers).values()
    assert {shown(result.reason) for result in others if result.status is not CheckStatus.PASS} == {
        "slurm.configuration.elsewhere",
        "slurm.accounting.elsewhere",
    }
    assert shown(judged()["slurm.accounting"].reason) == "slurm.accounting.none"


def test_other_engines_have_no_checks_and_no_steps_of_slurm() -> None:
    assert judged(where=cluster_of(2)) == {}
    assert "slurm" not in [step.role for step in plan_node(scene_of(now=cluster_of(2)))]


@pytest.mark.parametrize(
    ("check", "status", "wanted", "changes"),
    [
        ("controller", "FAIL", "slurm.controller.not_installed", {"version": ""}),
        ("controller", "FAIL", "slurm.controller.no_answer: Unable to contact", {"problem": "Unable to contact"}),
        ("munge", "FAIL", "slurm.munge.missing", {"key": ""}),
        ("node", "FAIL", "slurm.node.not_registered", {"nodes": {}}),
        ("node", "FAIL", "slurm.node.down: down* none", {"nodes": {"gpu1": SlurmNode("down*", "", "", "none")}}),
        ("node", "FAIL", "slurm.node.down: idle* none", {"nodes": {"gpu1": SlurmNode("idle*", "", "", "none")}}),
        (
            "node", "FAIL", "slurm.node.unhealthy: gpu_missing",
            {"nodes": {"gpu1": SlurmNode("drained", "gpu:g0:1", "root", "provision: health: gpu_missing")}},
        ),
        (
            "node", "WARN", "slurm.node.drained: drained mine bob",
            {"nodes": {"gpu1": SlurmNode("drained", "gpu:1", "bob", "mine")}},
        ),
        (
            "gres", "FAIL", "slurm.gres.differs: 2 1",
            {"nodes": {"gpu1": SlurmNode("idle", "gpu:g0:1,gpu:g1:1(S:0)", "", "")}},
        ),
        ("gres", "FAIL", "slurm.gres.differs: 0 1", {"nodes": {"gpu1": SlurmNode("idle", "(null)", "", "")}}),
        ("devices", "FAIL", "slurm.devices.off", {"devices": False}),
        ("configuration", "FAIL", "slurm.configuration.missing gpu1 gpu2", {"recorded": {}}),
        ("layout", "FAIL", "slurm.layout.invalid", {"layout": layout(hostname="a b")}),
        ("layout", "FAIL", "slurm.layout.name_taken: gpu2 gpu2", {"layout": layout(hostname="gpu2")}),
    ],
)  # fmt: skip
def test_a_problem_has_its_reason(check: str, status: str, wanted: str, changes: dict[str, Any]) -> None:
    result = judged(**changes)[f"slurm.{check}"]

    assert result.status is CheckStatus[status]
    assert wanted in shown(result.reason)


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        (None, "slurm.accounting.missing"),
        (SlurmAccounting("Connection refused"), "slurm.accounting.no_answer: Connection refused"),
        (SlurmAccounting(), "slurm.accounting.not_registered"),
    ],
)
def test_accounting_that_does_not_work_is_a_failure_that_an_apply_fixes(
    state: SlurmAccounting | None, wanted: str
) -> None:
    result = judged(where=cluster(slurm_accounting="slurmdbd"), accounting=state)["slurm.accounting"]

    assert (result.status, shown(result.reason)) == (CheckStatus.FAIL, wanted)
    assert wanted in plan({"accounting": state}, slurm_accounting="slurmdbd")


def test_a_key_that_differs_from_the_controllers_is_a_failure() -> None:
    assert shown(judged("gpu2", key="bb")["slurm.munge"].reason) == "slurm.munge.differs"


def test_gpus_of_a_site_are_counted_in_its_own_form() -> None:
    """An existing cluster has types and sockets of its own."""
    node = SlurmNode("mixed", "gpu:h100:1(S:0-1)", "", "")

    assert judged(nodes={"gpu1": node})["slurm.gres"].status is CheckStatus.PASS


def test_a_changed_node_fails_the_configuration_of_the_controller() -> None:
    """Its own checks may pass: the controller's role writes its line."""
    where = cluster()
    all_facts = states(where)
    more = dataclasses.replace(all_facts["gpu2"].slurm, layout=layout(hostname="gpu2", memory=128000))
    all_facts["gpu2"] = dataclasses.replace(all_facts["gpu2"], slurm=more)
    results = judge(where.node("gpu1"), all_facts["gpu1"], where, all_facts=all_facts, supported=SUPPORTED)
    (result,) = [result for result in results if result.id == "slurm.configuration"]

    assert shown(result.reason) == "slurm.configuration.wrong: slurm.configuration.differ gpu2"


@pytest.mark.parametrize("host", ["a b", "gpu1"])
def test_a_refused_report_is_a_finding_of_its_node_alone(host: str) -> None:
    """An apply cannot fix it, and the configuration of the controller is complete without it."""
    where = cluster()
    all_facts = states(where)
    more = dataclasses.replace(all_facts["gpu2"].slurm, layout=layout(hostname=host, memory=128000))
    all_facts["gpu2"] = dataclasses.replace(all_facts["gpu2"], slurm=more)
    failed = {
        (name, result.id)
        for name in all_facts
        for result in judge(where.node(name), all_facts[name], where, all_facts=all_facts, supported=SUPPORTED)
        if result.id.startswith("slurm.") and result.status is CheckStatus.FAIL
    }

    assert failed == {("gpu2", "slurm.layout")}


def plan(changes: dict[str, Any] | None = None, **variables: Any) -> list[str]:
    where = cluster(**variables)
    scene = scene_of(now=where)
    all_facts = {
        name: dataclasses.replace(scene.all_facts[name], slurm=facts.slurm)
        for name, facts in states(where, **(changes or {})).items()
    }
    scene = dataclasses.replace(scene, facts=all_facts["gpu1"], all_facts=all_facts)
    return [shown(cause) for step in plan_node(scene) if step.role == "slurm" for cause in step.reasons]


def test_a_converged_node_has_no_step() -> None:
    assert plan() == []


def test_the_line_of_a_node_with_jobs_is_no_step_until_the_jobs_have_ended() -> None:
    """The check fails meanwhile, and an apply that cannot change it is not planned."""
    where = cluster()
    recorded = {name: {**entry, "gpus": []} for name, entry in states(where)["gpu1"].slurm.recorded.items()}
    idle = {f"gpu{n}": SlurmNode("idle", "gpu:g0:1", "", "") for n in (1, 2)}
    busy = {name: dataclasses.replace(node, state="mixed") for name, node in idle.items()}

    assert plan({"recorded": recorded, "nodes": busy}) == []
    assert plan({"recorded": recorded, "nodes": idle}) == [
        "slurm.configuration.wrong: slurm.configuration.differ gpu1 gpu2"
    ]


def test_a_node_that_its_health_checks_drained_has_no_step() -> None:
    drained = SlurmNode("drained", "gpu:g0:1", "root", "provision: health: disk_full")

    assert plan({"nodes": {"gpu1": drained, "gpu2": SlurmNode("idle", "gpu:g0:1")}}) == []


def test_a_present_slurm_is_never_changed() -> None:
    """Failing checks are findings, and neither packages nor files are written."""
    variables = {**ON, "slurm_source": "present"}

    assert plan({"problem": "Unable to contact", "devices": False}, slurm_source="present") == []
    assert [*COMPONENT.packages(variables, {}, healthy())] == []
    assert [*COMPONENT.files(variables, healthy())] == []


def test_several_releases_are_refused_before_anything_changes() -> None:
    """Slurm 24.11 does not talk to 22.05."""
    where = cluster()
    all_facts = states(where)
    other = System("debian", "13", "Debian GNU/Linux 13", "6.12", "x86_64")
    mixed = {**all_facts, "gpu2": dataclasses.replace(all_facts["gpu2"], system=other)}

    assert cluster_problems("slurm", where.node("gpu1"), where, all_facts) == ()
    (problem,) = cluster_problems("slurm", where.node("gpu1"), where, mixed)
    assert (problem.code, problem.object) == (PreflightCode.CLUSTER_MIXED, "operating system")
    assert "debian 12 on gpu1; debian 13 on gpu2" in problem.problem

    stand_in = dataclasses.replace(mixed["gpu2"], simulated={"system": "Debian 13"})
    (problem,) = cluster_problems("slurm", where.node("gpu1"), where, {**mixed, "gpu2": stand_in})
    assert "debian 13 (SIMULATED) on gpu2" in problem.problem


@pytest.mark.parametrize(
    ("name", "version"),
    [("debian_12", ""), ("debian_13", ""), ("ubuntu_22.04", "Slurm 21.08"), ("ubuntu_24.04", "Slurm 23.11")],
)
def test_an_unsupported_slurm_of_the_system_is_refused(name: str, version: str) -> None:
    """The message has the version and those that are supported; a Slurm that others manage may be any."""
    system = systems(roles_folder())[name]
    problems = setting_problems("slurm", ON, healthy(), system)

    assert [(problem.code, problem.object) for problem in problems] == (
        [(PreflightCode.VARIABLE_INVALID, "cluster_engine")] if version else []
    )
    assert all(problem.problem.startswith(f"{version} of Ubuntu ") for problem in problems)
    assert all("supported versions are 22.05, 24.11" in problem.problem for problem in problems)
    assert setting_problems("slurm", {**ON, "slurm_source": "present"}, healthy(), system) == ()


def test_several_engines_and_unknown_controllers_are_refused() -> None:
    where = cluster()
    first = where.node("gpu1")
    mixed = dataclasses.replace(where, nodes=(first, dataclasses.replace(where.node("gpu2"), variables={})))
    unknown = cluster(slurm_controller="gpu9")

    assert [one.code for one in cluster_problems("slurm", first, mixed, states())] == [PreflightCode.CLUSTER_MIXED]
    (problem,) = cluster_problems("slurm", unknown.node("gpu1"), unknown, states())
    assert (problem.code, problem.object) == (PreflightCode.VARIABLE_INVALID, "slurm_controller")


def test_the_record_of_a_node_does_not_stop_the_others() -> None:
    """A node could name itself as the controller; only its own apply is refused."""
    where, all_facts = cluster(), states()
    claim = dataclasses.replace(all_facts["gpu2"].slurm, controllers=("gpu2",), partitions=("x",), busy_partitions=None)
    all_facts["gpu2"] = dataclasses.replace(all_facts["gpu2"], slurm=claim)

    assert not cluster_problems("slurm", where.node("gpu1"), where, all_facts)
    refused = [one.object for one in cluster_problems("slurm", where.node("gpu2"), where, all_facts)]
    assert refused == ["slurm_controller", "slurm_partitions"]


def problems_of(where: Cluster, **changes: Any) -> list[str]:
    """Return the objects of the problems of a cluster whose controller has recorded something."""
    all_facts = states(cluster(), **changes)
    return [one.object for one in cluster_problems("slurm", where.node("gpu1"), where, all_facts)]


@pytest.mark.parametrize(
    ("variables", "recorded", "objects"),
    [
        ({}, {"controllers": ("gpu1",), "partitions": ("gpu",), "state_folder": "/var/lib/slurm/slurmctld"}, []),
        ({}, {"controllers": ("gpu2",)}, ["slurm_controller"]),
        ({"slurm_state_folder": "/b"}, {"state_folder": "/a"}, ["slurm_state_folder"]),
        ({}, {"partitions": ("old",), "busy_partitions": ("old",)}, ["slurm_partitions"]),
        ({}, {"partitions": ("old",), "busy_partitions": ()}, []),
        ({"slurm_partitions": [{"name": "gpu", "nodes": ["gpu1"]}]}, {}, ["slurm_partitions"]),
        ({"slurm_partitions": [{"name": "gpu", "nodes": ["gpu1", "gpu2", "gpu3"]}]}, {}, ["slurm_partitions"]),
        ({"slurm_source": "present"}, {"controllers": ("gpu2",)}, []),
    ],
)
def test_a_change_that_loses_jobs_or_nodes_is_refused_before_anything_changes(
    variables: dict[str, Any], recorded: dict[str, Any], objects: list[str]
) -> None:
    assert problems_of(cluster(**variables), **recorded) == objects


def test_the_line_of_a_node_stays_while_slurmctld_does_not_answer() -> None:
    """Whether jobs run there is unknown."""
    recorded = {name: {**entry, "gpus": []} for name, entry in states()["gpu1"].slurm.recorded.items()}
    steps = plan({"recorded": recorded, "nodes": {}, "problem": "Unable to contact slurm controller"})

    assert not [step for step in steps if step.startswith("slurm.configuration")]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("slurm_options", {"SlurmUser": "root"}),
        ("slurm_partitions", [{"name": "a b"}]),
        ("slurm_state_folder", "x"),
    ],
)
def test_a_setting_that_the_role_cannot_write_is_a_problem(variable: str, value: object) -> None:
    (problem,) = setting_problems("slurm", {**ON, variable: value}, healthy())

    assert problem.object == variable


def test_a_slurm_of_others_is_never_replaced() -> None:
    """A node that answers in Slurm without any record of the role, not even a receipt."""
    facts = dataclasses.replace(states(controllers=())["gpu1"], receipts={})
    (problem,) = setting_problems("slurm", ON, facts)

    assert problem.object == "slurm_source"
    assert setting_problems("slurm", {**ON, "slurm_source": "present"}, facts) == ()
    for changes in ({"nodes": {}}, {"controllers": ("gpu1",)}):
        assert setting_problems("slurm", ON, dataclasses.replace(states(**changes)["gpu1"], receipts={})) == ()


def test_the_controller_is_named_or_the_queue_host() -> None:
    where = cluster()

    assert controllers_of(where, {}) == ("gpu1",)
    assert controllers_of(where, {"cluster_head": "gpu2"}) == ("gpu2",)
    assert controllers_of(where, {"cluster_head": "gpu2", "slurm_controller": "gpu1"}) == ("gpu1",)
    assert controllers_of(where, {"slurm_backup_controller": "gpu2"}) == ("gpu1", "gpu2")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"layout": {"sockets": 0}}',
        '{"layout": {"sockets": 1, "cores": "8", "threads": 1, "memory": 1, "hostname": "a"}}',
        '{"nodes": {"a": 1}}',
        '{"devices": "yes"}',
    ],
)
def test_an_answer_of_another_form_is_unknown(text: str) -> None:
    assert isinstance(SlurmFact().parse(RawOutput(text, 0)), Unknown)


def test_a_node_without_slurm_has_an_empty_state() -> None:
    assert SlurmFact().parse(RawOutput("", 0)) == SlurmState()
    assert COMPONENTS["slurm"].engine == "slurm"


@pytest.mark.parametrize(
    ("name", "kind", "what", "request_kind"),
    [
        ("gpu1", CauseKind.RECEIPT, "", "layouts"),
        ("gpu1", CauseKind.CHECK, "slurm.configuration", "layouts"),
        ("gpu1", CauseKind.FILE, "/etc/provision/slurm.json", "layouts"),
        ("gpu1", CauseKind.FILE, "/etc/slurm/slurm.conf", None),
        ("gpu2", CauseKind.RECEIPT, "", "controller"),
        ("gpu2", CauseKind.CHECK, "slurm.munge", "controller"),
        ("gpu2", CauseKind.UNIT, "slurmd.service", None),
    ],
)
def test_nodes_and_controller_take_part_in_each_others_steps(
    name: str, kind: CauseKind, what: str, request_kind: str | None
) -> None:
    """A new node needs the key and a line; a controller without its record needs the layouts of all."""
    exchange = COMPONENT.exchange
    assert exchange is not None
    causes = (Cause(kind, what, reason("slurm.munge.missing")),)

    assert exchange.request(causes, scene_of(name, now=cluster())) == request_kind
    other = {"gpu1": "gpu2", "gpu2": "gpu1"}[name]
    wanted = {request_kind: [name]} if request_kind else {}
    takes_part = exchange.reason(wanted, scene_of(other, now=cluster()))
    assert (takes_part is not None) is (request_kind is not None)


def test_packages_and_the_first_run_require_an_idle_node() -> None:
    """Daemons restart without their jobs. Before the first run, jobs of `direct` may use the GPUs of Slurm."""
    where = scene_of(now=cluster())
    new = dataclasses.replace(where, facts=dataclasses.replace(where.facts, slurm=SlurmState()))
    known = dataclasses.replace(where.facts, slurm=SlurmState(controllers=("gpu1",)))
    where = dataclasses.replace(where, facts=known)
    why = reason("slurm.munge.missing")
    receipt, unit = Cause(CauseKind.RECEIPT, "", why), Cause(CauseKind.UNIT, "slurmd.service", why)

    assert not COMPONENT.is_disruptive((Cause(CauseKind.FILE, "/etc/slurm/slurm.conf", why),), where)
    assert not COMPONENT.is_disruptive((receipt,), where)
    assert COMPONENT.is_disruptive((Cause(CauseKind.PACKAGE, "slurmd", why),), where)
    assert COMPONENT.is_disruptive((receipt,), new)
    assert not COMPONENT.is_disruptive((unit,), new)


@pytest.mark.parametrize(
    ("name", "variables", "wanted"),
    [
        ("gpu1", {}, {"slurmctld"}),
        ("gpu1", {"slurm_accounting": "slurmdbd"}, {"slurmctld", "slurmdbd", "mariadb-server"}),
        ("gpu2", {"slurm_accounting": "slurmdbd"}, set()),
        ("gpu2", {"slurm_accounting": "slurmdbd", "slurm_backup_controller": "gpu2"}, {"slurmctld"}),
        ("gpu1", {"slurm_accounting": "slurmdbd", "slurm_source": "present"}, set()),
    ],
)
def test_the_preflight_checks_the_packages_of_the_controller(
    name: str, variables: dict[str, Any], wanted: set[str]
) -> None:
    """A repository without slurmdbd or MariaDB is a problem of the plan, not of the apply."""
    where = cluster(**variables)
    node = where.node(name)
    names = packages_of("slurm", node.variables, {}, healthy(), (node, where))

    assert set(names) & {"slurmctld", "slurmdbd", "mariadb-server", "mariadb"} == wanted
