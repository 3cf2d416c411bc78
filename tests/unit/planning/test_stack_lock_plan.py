"""The stack lock in a plan: causes of steps with their classes, findings, refusals, and the hold of the packages."""

from __future__ import annotations

import dataclasses

import pytest

from provision.commands.package_holds import HOLDS
from provision.facts.records import Receipt
from provision.model import StepClass
from provision.model.stack import Stack
from provision.planning import PlanScene, findings, plan_node
from provision.planning.stack_lock import lock_refusal, lock_variables, locked_on
from provision.stack.observed import stack_of
from tests.support.reasons import shown
from tests.unit.checks.conftest import healthy
from tests.unit.planning.conftest import busy, cluster_of, receipts_of, scene_of

PACKAGES = {**healthy().packages, "docker.io": "20.10.24-1", "runc": "1.1-1"}
SYSTEM = dataclasses.replace(healthy().system, package_manager="apt-get")
VENDOR = dataclasses.replace(healthy().rdma, ofed="MLNX_OFED_LINUX-5.8-3.0.7.0")


def scene(packages=None, *, held=True, file=None, lock=True, variables=None, **facts):
    """A node whose receipt has the versions of the lock and the file that holds them; some packages replaced."""
    cluster = cluster_of(**(variables or {}))
    known = {"packages": {**PACKAGES, **(packages or {})}, "system": SYSTEM, **facts}
    locked = stack_of(dataclasses.replace(healthy(), packages=PACKAGES, system=SYSTEM, image=None))
    assert isinstance(locked, Stack)
    now = dataclasses.replace(cluster, stack_lock=locked if lock else None)
    receipts = receipts_of(cluster)
    platform = receipts["platform"].content
    content = {**platform, "inputs": {"versions": locked.versions} if held else {}}
    if held if file is None else file:
        content["files"] = {**platform.get("files", {}), HOLDS: {"type": "file"}}
    known.setdefault("receipts", {**receipts, "platform": Receipt("platform", content, "")})
    return scene_of(before=cluster, now=now, **known)


def steps(where: PlanScene) -> dict[str, list[str]]:
    """Return role -> the codes of its reasons."""
    return {step.role: [why.code for why in step.reasons] for step in plan_node(where)}


def test_a_node_at_the_lock_has_no_steps():
    """Its packages are held in these versions."""
    assert steps(scene()) == {}
    assert findings(scene()) == ()


@pytest.mark.parametrize("package", ["docker.io", "runc"])
def test_a_component_that_differs_is_a_step_of_its_role(package):
    """It restarts docker, so it needs an idle node."""
    where = scene({package: "1.0"})

    assert steps(where)["docker_engine"] == ["stack.differs"]
    classes = {step.role: step.step_class for step in plan_node(where)}
    assert classes["docker_engine"] is StepClass.NEEDS_IDLE
    assert [shown(one) for one in findings(where)] == []


def test_the_step_of_a_component_waits_for_a_job():
    """A lock is no reason to end a job."""
    where = scene({"docker.io": "1.0"}, managed=busy())

    waiting = {step.role for step in plan_node(where) if step.waits_for}
    assert "docker_engine" in waiting


def test_the_toolkit_takes_docker_with_it():
    """Docker is restarted for another runtime."""
    assert set(steps(scene({"nvidia-container-toolkit": "1.0"}))) == {"nvidia_container", "docker_engine"}


@pytest.mark.parametrize(("held", "lock", "code"), [(False, True, "plan.not_held"), (True, False, "plan.held")])
def test_packages_that_are_not_held_are_a_safe_step(held, lock, code):
    """After a new lock, and after its removal; no job is disturbed."""
    [step] = plan_node(scene(held=held, lock=lock))

    assert (step.role, step.step_class) == ("platform", StepClass.SAFE)
    assert [why.code for why in step.reasons] == [code]


def test_a_hold_that_plain_ansible_preserved_is_removed_with_the_lock():
    """A run of plain Ansible records no versions, and the file that holds the packages stays."""
    assert steps(scene(held=False, file=True, lock=False)) == {"platform": ["plan.held"]}
    assert steps(scene(held=False, file=True)) == {"platform": ["plan.not_held"]}


def test_without_a_lock_nothing_is_held():
    """A receipt of an earlier version has no list of held packages."""
    assert steps(scene(held=False, lock=False)) == {}


def test_another_kernel_is_a_finding():
    """It is reported, and no step can change it."""
    where = scene(system=dataclasses.replace(SYSTEM, kernel="6.1.0-99"))

    assert steps(where) == {}
    assert "stack.kernel: 6.1.0-99 6.1.0" in map(shown, findings(where))
    assert not any("node.stack_lock" in shown(one) for one in findings(where))


def test_a_vendor_stack_is_refused_where_the_lock_has_the_inbox_stack():
    """The reason names the component."""
    where = scene(rdma=VENDOR)

    why = lock_refusal(where.node, where.cluster, where.facts)
    assert why is not None
    assert shown(why) == "stack.rdma_vendor: 5.8-3.0.7.0 inbox"
    assert lock_refusal(where.node, dataclasses.replace(where.cluster, stack_lock=None), where.facts) is None


def test_a_node_without_jobs_is_not_brought_to_the_lock():
    """Its roles for jobs are disabled."""
    where = scene({"docker.io": "1"}, rdma=VENDOR, variables={"cluster_takes_jobs": False})

    assert where.deviations == ()
    assert "platform" not in steps(scene(held=False, variables={"cluster_takes_jobs": False}))
    assert lock_refusal(where.node, where.cluster, where.facts) is None
    assert locked_on(where.node, where.cluster, where.facts) == {}


def test_rpm_nodes_hold_nothing():
    """Only apt is supported; no step would end it."""
    where = scene(held=False, system=dataclasses.replace(SYSTEM, package_manager="dnf"))

    assert steps(where) == {}


def test_the_roles_get_the_lock():
    """Versions by role, and the digest of the image; without a lock both are empty, so that holds are removed."""
    where = scene()

    assert lock_variables(where.cluster)["packages"]["docker_engine"] == {"docker.io": "20.10.24-1", "runc": "1.1-1"}
    assert lock_variables(dataclasses.replace(where.cluster, stack_lock=None)) == {"packages": {}, "image": ""}
