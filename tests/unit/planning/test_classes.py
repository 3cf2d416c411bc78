"""Needs-idle is what can disrupt a running job, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from provision.facts import Unknown
from provision.facts.docker import DockerService
from provision.facts.system import Kind, NodeKind
from provision.model import StepClass
from provision.planning import Cause, CauseKind, step_class
from tests.unit.planning.conftest import cluster_of, facts_of, scene_of

SAFE, IDLE = StepClass.SAFE, StepClass.NEEDS_IDLE
HEALTHY = facts_of(cluster_of())
ON_CONTAINER = {"kind": Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False)}
STOPPED = {"container": dataclasses.replace(HEALTHY.container, status="exited")}
NO_GPU = {"gpus": (), "gpu_pci": ()}
NO_DOCKER = {"docker_service": DockerService(loaded=False, active="inactive", enabled="", client=False)}
RECEIPT = (CauseKind.RECEIPT, "")
CODE = (CauseKind.CODE, "")


def variable(name):
    return CauseKind.VARIABLE, name


CASES = [
    ("platform", [RECEIPT], {}, SAFE),
    ("base_system", [RECEIPT], {}, SAFE),
    ("training_image", [RECEIPT], {}, SAFE),
    ("container_ssh", [RECEIPT], {}, SAFE),
    ("rdma_stack", [(CauseKind.FILE, "/etc/x")], {}, IDLE),
    ("rdma_stack", [RECEIPT], ON_CONTAINER, SAFE),
    ("peer_memory", [(CauseKind.UNIT, "x.service")], {}, IDLE),
    ("peer_memory", [RECEIPT], NO_GPU, SAFE),
    ("peer_memory", [RECEIPT], ON_CONTAINER, SAFE),
    ("nvidia_container", [(CauseKind.PACKAGE, "nvidia-container-toolkit")], {}, IDLE),
    ("nvidia_container", [(CauseKind.CHECK, "nvidia_container.toolkit")], {}, IDLE),
    ("nvidia_container", [variable("nvidia_container_flavor")], {}, IDLE),
    ("nvidia_container", [variable("nvidia_container_cdi_enabled")], {}, SAFE),
    ("nvidia_container", [(CauseKind.CHECK, "nvidia_container.runtime")], {}, SAFE),
    ("nvidia_container", [RECEIPT], {}, SAFE),
    ("nvidia_container", [(CauseKind.PACKAGE, "nvidia-container-toolkit")], NO_GPU, SAFE),
    ("docker_engine", [RECEIPT], {}, IDLE),
    ("docker_engine", [CODE], {}, IDLE),
    ("docker_engine", [(CauseKind.FILE, "/etc/docker/daemon.json")], {}, IDLE),
    ("docker_engine", [(CauseKind.FILE, "/etc/docker/certs.d/r:5000/ca.crt")], {}, SAFE),
    ("docker_engine", [(CauseKind.CHECK, "docker_engine.registry_ca")], {}, SAFE),
    ("docker_engine", [(CauseKind.CHECK, "docker_engine.service")], {}, IDLE),
    ("docker_engine", [variable("docker_engine_registry_logins"), variable("(nodes of the cluster)")], {}, SAFE),
    ("docker_engine", [variable("docker_engine_registry_logins"), variable("docker_engine_log_max_size")], {}, IDLE),
    ("docker_engine", [variable("docker_engine_repository_uri"), variable("docker_engine_repository_key")], {}, SAFE),
    ("docker_engine", [variable("something_that_a_value_names")], {}, IDLE),
    ("docker_engine", [RECEIPT], NO_DOCKER, SAFE),
    ("docker_engine", [(CauseKind.NEED, "nvidia_container")], {}, IDLE),
    ("training_container", [RECEIPT], {}, IDLE),
    ("training_container", [(CauseKind.FILE, "/x/container-hosts"), (CauseKind.UNIT, "x.path")], {}, SAFE),
    ("training_container", [(CauseKind.CHECK, "training_container.devices")], {}, IDLE),
    ("training_container", [variable("training_container_env")], {}, IDLE),
    ("training_container", [variable("training_container_replace_allowed")], {}, SAFE),
    ("training_container", [RECEIPT], STOPPED, SAFE),
    ("training_container", [RECEIPT], {"container": None}, SAFE),
    ("training_container", [RECEIPT], {"container": Unknown("hung")}, IDLE),
]


@pytest.mark.parametrize(("role", "causes", "facts", "wanted"), CASES)
def test_the_class_of_a_step_follows_from_its_effect_on_jobs(role, causes, facts, wanted):
    planned = tuple(Cause(kind, name, "") for kind, name in causes)

    assert step_class(role, planned, scene_of(**facts)) is wanted
