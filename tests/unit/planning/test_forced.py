"""``--force`` gives a role a reason to run, not the permission to disturb jobs; that is ``--disruptive`` alone."""

from __future__ import annotations

import dataclasses

import pytest

from provision.model import StepClass
from provision.workflow.node_plans import plan_nodes
from provision.workflow.plan import Request
from tests.unit.planning.conftest import JOB, SOURCES, busy, cluster_of, facts_of


def steps(*roles, jobs=True, disruptive=(), **variables):
    """The steps of a converged node of which some roles are forced."""
    cluster = cluster_of(ansible_python_interpreter="/usr/bin/python3", **variables)
    planned = {node.name: facts_of(cluster, node.name) for node in cluster.nodes}
    packages = {
        **planned["gpu1"].packages,
        "docker.io": "20.10.24",
    }  # a whole run of docker_engine would restart nothing
    planned["gpu1"] = dataclasses.replace(planned["gpu1"], packages=packages)
    if jobs:
        planned["gpu1"] = dataclasses.replace(planned["gpu1"], managed=busy(planned["gpu1"].managed))
    asked = Request(forced=roles, disruptive=frozenset(disruptive))
    (plans, _, errors) = plan_nodes(cluster.nodes[:1], cluster, planned, asked, SOURCES)
    assert not errors
    return {step.role: step for step in plans[0].steps}


HURTING = ["rdma_stack", "peer_memory", "nvidia_container", "docker_engine", "training_container"]


@pytest.mark.parametrize("role", HURTING)
def test_a_forced_disruptive_step_waits_on_a_busy_node(role):
    """And so does every step that it brings along."""
    planned = steps(role)

    assert planned[role].step_class is StepClass.NEEDS_IDLE
    assert {step.waits_for for step in planned.values() if step.step_class is not StepClass.SAFE} == {(JOB,)}


@pytest.mark.parametrize("role", HURTING)
def test_a_forced_step_runs_on_an_idle_node_or_with_disruptive(role):
    """The plan names the jobs that it may disturb."""
    assert (steps(role, jobs=False)[role].waits_for, steps(role, jobs=False)[role].disturbs) == ((), ())
    allowed = steps(role, disruptive=["gpu1"])[role]
    assert (allowed.waits_for, allowed.disturbs) == ((), (JOB,))


@pytest.mark.parametrize("role", ["platform", "base_system", "training_image", "container_ssh"])
def test_a_forced_safe_step_runs_on_a_busy_node(role):
    """It is announced as safe, so that operators do not drain a node for it."""
    planned = steps(role)

    assert [(step.step_class, step.waits_for) for step in planned.values()] == [(StepClass.SAFE, ())]


def test_a_forced_docker_engine_adds_the_role_nvidia_container():
    """Alone it would take the NVIDIA runtime out of daemon.json."""
    assert list(steps("docker_engine", jobs=False)) == ["nvidia_container", "docker_engine"]


def test_a_disabled_role_is_not_forced():
    assert steps("training_image", training_image_enabled=False) == {}
