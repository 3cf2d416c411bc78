"""Which roles run on a node, and why; a converged node has no step."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from provision.components import COMPONENTS, ROLES
from provision.facts import Unknown
from provision.facts.container import DeletedMount
from provision.facts.docker import DockerService
from provision.facts.managed import Managed
from provision.facts.records import Receipt
from provision.facts.system import Boot, Disk
from provision.model import NodePlan, Plan, Secret, StepClass
from provision.model.reason import reason
from provision.planning import RoleSource, blind, findings, fingerprint, plan_node
from provision.report.reasons import message
from provision.resources import roles_folder
from provision.workflow.sources import role_sources
from provision.yamltext import safe_load
from tests.support.reasons import shown
from tests.unit.planning.conftest import (
    JOB,
    SOURCES,
    busy,
    changed,
    cluster_of,
    receipts_of,
    scene_of,
)

HUNG = Unknown("hung: it did not answer within 40 s")


def reasons(scene):
    return {step.role: tuple(map(shown, step.reasons)) for step in plan_node(scene)}


def without(role):
    return {name: receipt for name, receipt in receipts_of(cluster_of()).items() if name != role}


def with_receipt(role, content, error=""):
    return {**receipts_of(cluster_of()), role: Receipt(role, content, error)}


def test_a_converged_node_has_no_steps():
    assert plan_node(scene_of()) == ()
    assert tuple(map(shown, findings(scene_of()))) == ()
    assert blind(scene_of()) is None


def test_a_bare_node_gets_every_role_in_playbook_order():
    steps = plan_node(scene_of(receipts={}, managed=Managed()))

    assert [step.role for step in steps] == [
        role for role, one in COMPONENTS.items() if one.serves({}) and one.is_requested({})
    ]
    assert {shown(step.reasons[0]) for step in steps} == {"plan.never_applied"}


def test_the_role_order_is_that_of_the_playbooks():
    """Progress would be wrong if roles ran in another order than planned."""
    planned = []
    for name in ("nodes", "containers"):
        (play,) = safe_load((roles_folder().parent / f"playbooks/{name}.yml").read_text(encoding="utf-8"))
        planned += [role["role"] for role in play["roles"] if role["role"] not in planned]

    assert planned == list(ROLES)


def test_a_disabled_role_is_no_step():
    for off in (False, "no", "False", "off"):
        cluster = cluster_of(training_image_enabled=off)
        assert "training_image" not in reasons(scene_of(now=cluster, receipts={}, managed=Managed()))


def test_a_role_whose_state_needs_ansible_counts_as_enabled():
    cluster = cluster_of(base_system_enabled="{{ some_fact }}")

    assert "base_system" in reasons(scene_of(now=cluster, receipts=without("base_system")))


@pytest.mark.parametrize(
    ("receipts", "words"),
    [
        (without("base_system"), "plan.never_applied"),
        (with_receipt("base_system", {}, "not JSON: line 1"), "plan.receipt_unreadable: not JSON: line 1"),
        (with_receipt("base_system", {"fingerprint": None}), "plan.no_fingerprint"),
        (with_receipt("base_system", {"fingerprint": {"salt": []}}), "plan.no_fingerprint"),
        (with_receipt("base_system", {"files": "odd", "fingerprint": 7}), "plan.no_fingerprint"),
    ],
)
def test_an_invalid_receipt_plans_its_role(receipts, words):
    planned = reasons(scene_of(receipts=receipts))

    assert list(planned) == ["base_system"]
    assert words in planned["base_system"][0]


def test_an_unsealed_receipt_plans_its_role_and_is_ignored():
    managed = changed("base_system", "files", "/etc/hosts", {"type": "missing"})
    others = {role: True for role in ROLES if role != "base_system"}
    for sealed in (others, {**others, "base_system": False}):
        edited = dataclasses.replace(managed, sealed=sealed)
        assert reasons(scene_of(managed=edited)) == {"base_system": ("plan.receipt_edited",)}


def test_a_changed_variable_plans_the_roles_that_use_it():
    before, now = cluster_of(docker_engine_log_max_size="10m"), cluster_of(docker_engine_log_max_size="20m")

    assert reasons(scene_of(before=before, now=now)) == {
        "docker_engine": ("plan.variable_changed: docker_engine_log_max_size",),
        "nvidia_container": ("docker_engine.runtime_role",),
    }


def test_a_variable_that_no_role_uses_changes_nothing():
    before, now = cluster_of(motd="hello"), cluster_of(motd="bye", ansible_password=Secret("x"))

    assert plan_node(scene_of(before=before, now=now)) == ()


def test_a_new_node_plans_the_exchange_of_keys_on_all_nodes():
    said = "plan.nodes_changed"
    scene = dataclasses.replace(scene_of(before=cluster_of(2), now=cluster_of(3)), all_facts={})

    assert {role for role, why in reasons(scene).items() if said in map(str, why)} == {
        "platform", "base_system", "docker_engine", "training_image", "container_ssh"
    }  # fmt: skip


def test_variables_used_by_the_real_roles_are_detected():
    """Were a role's text not read, a changed variable would never be applied."""
    sources = role_sources()
    assert set(ROLES) <= set(sources)
    wanted = {
        "docker_engine_log_max_size": "docker_engine", "training_image_reference": "training_container",
        "container_ssh_port": "container_ssh", "platform_extra_repositories": "platform",
        "base_system_sysctls": "base_system", "peer_memory_provider": "peer_memory",
        "nvidia_container_flavor": "nvidia_container", "training_image_digest": "training_image",
        "cluster_data_networks": "rdma_stack", "rdma_stack_source": "rdma_stack",
        "docker_engine_source": "docker_engine", "docker_engine_log_driver": "docker_engine",
    }  # fmt: skip
    cluster = cluster_of(**dict.fromkeys(wanted, "x"), nobody_sees_this="x")
    for name, role in wanted.items():
        seen = fingerprint(role, cluster.nodes[0], cluster, sources, "salt")["variables"]
        assert name in seen
        assert "nobody_sees_this" not in seen


def test_a_changed_role_is_planned():
    sources = {**SOURCES, "base_system": RoleSource("other", SOURCES["base_system"].words)}

    assert reasons(dataclasses.replace(scene_of(), sources=sources)) == {"base_system": ("plan.role_changed",)}


def test_manual_changes_are_reported():
    managed = changed(
        "docker_engine", "units", "docker.service", {"load": "masked", "active": "active", "enabled": "x"}
    )

    assert reasons(scene_of(managed=managed))["docker_engine"] == ("unit.masked: docker.service",)


def test_an_unloaded_module_is_reported_with_the_time_of_the_boot():
    now = datetime(2026, 11, 21, 12, 12, tzinfo=UTC)
    managed = changed("rdma_stack", "modules", "ib_uverbs", value=False)
    for seconds, words in ((7200, "10:12"), (7200 + 86400, "2026-11-20 10:12")):
        scene = dataclasses.replace(scene_of(managed=managed, boot=Boot(seconds, "b")), now=now)
        assert reasons(scene)["rdma_stack"] == (f"module.missing: ib_uverbs {words}",)


def test_a_node_with_an_invalid_boot_time_is_planned():
    now = datetime(2026, 11, 21, 12, 12, tzinfo=UTC)
    managed = changed("rdma_stack", "modules", "ib_uverbs", value=False)
    for seconds in (10**11, 10**20):
        scene = dataclasses.replace(scene_of(managed=managed, boot=Boot(seconds, "b")), now=now)
        assert reasons(scene)["rdma_stack"] == ("module.missing: ib_uverbs",)


def test_a_failed_check_that_apply_fixes_plans_its_role():
    stopped = DockerService(loaded=True, active="inactive", enabled="enabled", client=True)

    assert reasons(scene_of(docker_service=stopped))["docker_engine"] == ("docker_engine.service.not_active: inactive",)


@pytest.mark.parametrize("fact", ["receipts", "managed"])
def test_a_node_with_unreadable_receipts_is_not_converged(fact):
    """Silence would look like a node without anything to do."""
    scene = scene_of(**{fact: HUNG})

    assert plan_node(scene) == ()
    assert HUNG.reason in blind(scene).params.values()
    assert findings(scene) == (blind(scene),)


def test_a_hanging_command_is_reported_and_plans_no_role():
    scene = scene_of(managed=dataclasses.replace(scene_of().facts.managed, hung=("systemctl show",)), limits=HUNG)

    assert plan_node(scene) == ()
    limits, managed = tuple(map(shown, findings(scene)))
    assert limits == f"plan.finding: base_system.limits check.fact_unavailable {HUNG.reason}"
    assert managed == "plan.no_answer: systemctl show"


def test_findings_of_nodes_with_the_same_problem_are_equal():
    scenes = [scene_of(name, disks=(Disk("/", 5000, 10000, None, writable=False),)) for name in ("gpu1", "gpu2")]
    lost = [scene_of(name, container_ssh=HUNG, docker_info=HUNG) for name in ("gpu1", "gpu2")]

    assert findings(scenes[0]) == findings(scenes[1])
    assert findings(lost[0]) == findings(lost[1])


def test_a_disruptive_step_on_a_busy_node_waits_and_lists_the_jobs():
    managed = busy(changed("rdma_stack", "modules", "ib_uverbs", value=False))
    managed.observed["base_system"]["files"]["/etc/hosts"] = {"type": "missing"}
    steps = {step.role: step for step in plan_node(scene_of(managed=managed))}

    assert steps["rdma_stack"].step_class is StepClass.NEEDS_IDLE
    assert steps["rdma_stack"].waits_for == (JOB,)
    assert steps["base_system"].waits_for == ()


def test_a_container_with_deleted_folders_is_recreated_together_with_its_ssh():
    """What container_ssh writes would not get into the old one: both go together, or wait together."""
    gone = dataclasses.replace(
        scene_of().facts.container, deleted=(DeletedMount("/var/lib/provision/container_ssh", "/etc/provision/ssh"),)
    )
    lost = changed("container_ssh", "files", "/var/lib/provision/container_ssh/ssh_config", {"type": "missing"})
    idle = {step.role: step for step in plan_node(scene_of(container=gone, container_ssh=None, managed=lost))}
    waits = {step.role: step for step in plan_node(scene_of(container=gone, container_ssh=None, managed=busy(lost)))}

    assert list(idle) == list(waits) == ["training_container", "container_ssh"]
    assert idle["training_container"].step_class is StepClass.NEEDS_IDLE
    (reason,) = tuple(map(shown, idle["training_container"].reasons))
    assert reason.startswith("training_container.mounts.deleted: ")
    assert reason.endswith("/var/lib/provision/container_ssh /etc/provision/ssh")
    assert not any(step.waits_for for step in idle.values())
    assert all(step.waits_for == (JOB,) for step in waits.values())


def test_keys_are_exchanged_if_the_container_lost_another_folder():
    """The folder of its SSH is there: what is written into it reaches the container."""
    data = dataclasses.replace(scene_of().facts.container, deleted=(DeletedMount("/data", "/data"),))
    lost = busy(changed("container_ssh", "files", "/var/lib/provision/container_ssh/ssh_config", {"type": "missing"}))
    steps = {step.role: step for step in plan_node(scene_of(container=data, managed=lost))}

    assert steps["training_container"].waits_for == (JOB,)
    assert steps["container_ssh"].waits_for == ()


def test_a_node_with_unknown_jobs_counts_as_busy():
    (step, *_) = plan_node(scene_of(managed=HUNG, receipts=without("training_container")))

    assert step.role == "training_container"
    assert step.waits_for == (f"it is unknown whether a job runs: {HUNG.reason}",)


def test_nothing_waits_with_disruptive():
    managed = busy(changed("rdma_stack", "modules", "ib_uverbs", value=False))

    assert not any(step.waits_for for step in plan_node(scene_of(managed=managed, disruptive=("gpu1",))))
    assert any(step.waits_for for step in plan_node(scene_of(managed=managed, disruptive=("gpu2",))))


def test_a_plan_is_converged_only_without_steps_and_errors():
    (step, *_) = plan_node(scene_of(receipts={}))

    assert Plan((NodePlan("a", findings=(reason("plan.no_answer", command="x"),)), NodePlan("b"))).converged
    assert not Plan((NodePlan("a", (step,)),)).converged
    assert not Plan((NodePlan("a", error="no route"),)).converged
    assert not Plan((NodePlan("a", reachable=False),)).converged


ODD = (None, True, 7, "text", [], [1, {}], {"x": None}, {"x": []}, {"x": {"type": []}}, {"salt": "s", "code": "c"})


@pytest.mark.parametrize("key", ["fingerprint", "files", "packages", "units", "images", "reductions", "inputs", "role"])
@pytest.mark.parametrize("odd", ODD)
def test_a_plan_is_made_for_any_receipt(key, odd):
    """Receipts are hints: an odd one can cause more work, and never an error."""
    receipts = {
        role: Receipt(role, {**receipt.content, key: odd}) for role, receipt in receipts_of(cluster_of()).items()
    }
    seen = Managed(dict.fromkeys(ROLES, True), {role: {key: odd} for role in ROLES})

    for step in plan_node(scene_of(receipts=receipts, managed=seen)):
        assert step.reasons
        assert all(message(reason).isprintable() for reason in step.reasons)
