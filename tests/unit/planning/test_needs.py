"""A step brings along the roles whose work it takes away, so that one apply is enough."""

from __future__ import annotations

import dataclasses

import pytest

from provision.facts.docker import DockerService, Image
from provision.model import StepClass
from provision.planning import plan_node
from tests.support.reasons import shown
from tests.unit.planning.conftest import (
    CONTAINER,
    JOB,
    busy,
    changed,
    cluster_of,
    facts_of,
    receipts_of,
    scene_of,
)

HEALTHY = facts_of(cluster_of())
NO_DOCKER = DockerService(loaded=False, active="inactive", enabled="", client=False)


def steps(scene):
    return {step.role: step for step in plan_node(scene)}


def reasons(scene):
    return {role: tuple(map(shown, step.reasons)) for role, step in steps(scene).items()}


def test_a_changed_rdma_stack_adds_peer_memory_and_the_container():
    planned = reasons(scene_of(managed=changed("rdma_stack", "packages", "rdma-core", "45")))

    assert list(planned) == ["rdma_stack", "peer_memory", "training_container", "container_ssh"]
    assert planned["peer_memory"] == ("rdma_stack.packages_change",)
    assert planned["training_container"] == ("rdma_stack.devices_change",)


def test_a_role_without_a_receipt_has_one_reason():
    receipts = {role: planned for role, planned in receipts_of(cluster_of()).items() if role != "peer_memory"}
    planned = reasons(scene_of(receipts=receipts, managed=changed("rdma_stack", "packages", "rdma-core", "45")))

    assert planned["peer_memory"] == ("plan.never_applied",)


def test_a_node_without_gpus_builds_no_module_for_the_rdma_stack():
    managed = changed("rdma_stack", "packages", "rdma-core", "45")

    assert "peer_memory" not in reasons(scene_of(managed=managed, gpus=(), gpu_pci=()))


def test_an_edited_file_of_the_rdma_stack_plans_only_its_role():
    managed = changed("rdma_stack", "files", "/usr/local/lib/provision/rdma-setup", {"type": "missing"})

    assert list(reasons(scene_of(managed=managed))) == ["rdma_stack"]


def test_a_step_of_docker_adds_the_role_nvidia_container():
    managed = changed("docker_engine", "units", "docker.service", {"load": "masked", "active": "active"})
    planned = steps(scene_of(managed=managed))

    assert list(planned) == ["nvidia_container", "docker_engine"]
    assert planned["nvidia_container"].step_class is StepClass.SAFE
    assert "nvidia_container" not in steps(scene_of(managed=managed, gpus=(), gpu_pci=()))
    off = cluster_of(nvidia_container_enabled=False)
    assert "nvidia_container" not in steps(scene_of(before=off, now=off, managed=managed))


def test_new_packages_of_the_nvidia_runtime_restart_docker():
    planned = steps(scene_of(managed=changed("nvidia_container", "packages", "nvidia-container-toolkit", None)))

    assert tuple(map(shown, planned["docker_engine"].reasons)) == ("nvidia_container.restart_docker",)
    assert planned["docker_engine"].step_class is StepClass.NEEDS_IDLE


def test_docker_without_the_nvidia_runtime_is_reported():
    info = dataclasses.replace(HEALTHY.docker_info, runtimes=("runc",))

    assert reasons(scene_of(docker_info=info))["docker_engine"] == ("nvidia_container.configure_docker",)


def test_a_changed_image_recreates_the_container():
    planned = steps(scene_of(managed=changed("training_image", "images", "r:5000/t:1", None), image=None))

    assert list(planned) == ["training_image", "training_container", "container_ssh"]
    assert tuple(map(shown, planned["training_container"].reasons)) == ("training_image.may_change",)
    assert planned["training_container"].step_class is StepClass.NEEDS_IDLE
    assert tuple(map(shown, planned["container_ssh"].reasons)) == ("training_container.new_sshd",)


@pytest.mark.parametrize(
    ("variable", "more"),
    [("training_image_retries", []), ("training_image_digest", ["training_container", "container_ssh"])],
)
def test_only_variables_that_select_the_image_recreate_the_container(variable, more):
    before, now = cluster_of(**{variable: "sha256:22"}), cluster_of(**{variable: "sha256:33"})

    assert list(reasons(scene_of(before=before, now=now))) == ["training_image", *more]


def test_a_removed_node_recreates_no_container_of_the_others():
    """Their image is the same."""
    planned = steps(scene_of(before=cluster_of(3), now=cluster_of(2)))

    assert "training_image" in planned
    assert "training_container" not in planned


def test_a_lost_receipt_of_the_same_image_does_not_recreate_the_container():
    receipts = {role: planned for role, planned in receipts_of(cluster_of()).items() if role != "training_image"}

    assert list(reasons(scene_of(receipts=receipts))) == ["training_image"]
    other = Image("sha256:99", ("r:5000/t@sha256:22",), ())
    assert "training_container" in reasons(scene_of(receipts=receipts, image=other))


def test_unrelated_files_do_not_affect_the_container_and_its_ssh():
    managed = changed("training_container", "files", "/usr/local/lib/provision/container-hosts", {"type": "missing"})

    assert list(reasons(scene_of(managed=managed))) == ["training_container"]


def test_a_manually_recreated_container_gets_its_ssh_again():
    managed = changed("training_container", "containers", "provision-training", {**CONTAINER, "id": "c2"})

    managed.observed["container_ssh"]["containers"]["provision-training"] = {**CONTAINER, "id": "c2"}
    planned = reasons(scene_of(managed=managed))

    assert list(planned) == ["training_container", "container_ssh"]
    assert planned["container_ssh"] == ("container.recreated: provision-training",)


@pytest.mark.parametrize(
    ("facts", "clusters", "why"),
    [
        ({"docker_service": NO_DOCKER}, (cluster_of(), cluster_of()), "docker_engine.new_engine"),
        ({}, [cluster_of(docker_engine_data_root=root) for root in ("/a", "/b")], "docker_engine.new_data_root"),
    ],
)  # fmt: skip
def test_a_reinstalled_docker_gets_its_image_and_container_again(facts, clusters, why):
    planned = reasons(scene_of(before=clusters[0], now=clusters[1], **facts))

    assert f"docker_engine.image_missing: {why}" in planned["training_image"]
    assert f"docker_engine.container_missing: {why}" in planned["training_container"]


@pytest.mark.parametrize(("used", "chosen", "planned"), [(False, True, True), (True, False, True), (True, True, False)])
def test_another_image_store_gets_image_and_container_again(used, chosen, planned):
    """The images and containers of one store do not exist in the other."""
    features = {"features": {"containerd-snapshotter": chosen}}
    info = dataclasses.replace(facts_of(cluster_of()).docker_info, containerd_store=used)
    clusters = cluster_of(), cluster_of(docker_engine_daemon_options=features)
    every = reasons(scene_of(before=clusters[0], now=clusters[1], docker_info=info))
    image, container = (every.get(role, ()) for role in ("training_image", "training_container"))

    assert ("docker_engine.image_missing: docker_engine.new_store" in image) is planned
    assert ("docker_engine.container_missing: docker_engine.new_store" in container) is planned


def test_steps_that_depend_on_a_waiting_step_wait_with_it():
    """An image from a registry that docker does not know yet could not be pulled; runtime and packages go together."""
    managed = busy(changed("docker_engine", "packages", "docker.io", "20.10.25"))
    managed.observed["training_image"]["images"]["r:5000/t:1"] = None
    planned = steps(scene_of(managed=managed, image=None))

    assert {role: step.waits_for for role, step in planned.items()} == dict.fromkeys(
        ("nvidia_container", "docker_engine", "training_image", "training_container", "container_ssh"), (JOB,)
    )
    assert planned["training_image"].step_class is StepClass.SAFE


@pytest.mark.parametrize(
    ("running", "live_restore", "disruptive", "waits"),
    [(3, False, (), True), (1, False, (), False), (3, True, (), False), (3, False, ("gpu1",), False)],
)
def test_a_restart_of_docker_waits_for_containers_of_others(running, live_restore, disruptive, waits):
    """They are no jobs, and Docker would end them. One of the running containers is the training container."""
    usual = facts_of(cluster_of()).docker_info
    info = dataclasses.replace(usual, containers_running=running, live_restore=live_restore)
    managed = changed("docker_engine", "packages", "docker.io", "20.10.25")
    planned = steps(scene_of(managed=managed, docker_info=info, disruptive=disruptive))["docker_engine"]
    text = "a restart of docker ends 2 running containers that this tool did not create (docker ps)"

    assert planned.step_class is StepClass.NEEDS_IDLE
    assert planned.waits_for == ((text,) if waits else ())
    assert planned.disturbs == ((text,) if disruptive else ())


def test_each_step_names_what_it_would_end():
    """Docker's restart ends other containers, too; a new training container ends only its jobs."""
    info = dataclasses.replace(facts_of(cluster_of()).docker_info, containers_running=2, live_restore=False)
    managed = busy(changed("docker_engine", "packages", "docker.io", "20.10.25"))
    managed.observed["training_container"]["containers"]["provision-training"] = {**CONTAINER, "image": "x", "id": "y"}
    planned = steps(scene_of(managed=managed, docker_info=info))
    other = "a restart of docker ends 1 running container that this tool did not create (docker ps)"

    assert planned["docker_engine"].waits_for == (JOB, other)
    assert planned["training_container"].waits_for == (JOB,)


def test_keys_are_exchanged_while_the_container_waits_for_replacement():
    managed = busy(
        changed("training_container", "containers", "provision-training", {**CONTAINER, "image": "x", "id": "y"})
    )
    managed.observed["container_ssh"]["files"]["/var/lib/provision/container_ssh/ssh_config"] = {"type": "missing"}
    planned = steps(scene_of(managed=managed))

    assert planned["training_container"].waits_for == (JOB,)
    assert planned["container_ssh"].waits_for == ()


def test_an_unselected_role_does_not_add_other_roles():
    """With --only docker_engine nvidia_container's packages stay missing; docker is not planned for them for ever."""
    gone = changed("nvidia_container", "packages", "nvidia-container-toolkit", None)
    scene = dataclasses.replace(scene_of(managed=gone), only=frozenset({"docker_engine"}))

    assert [step.role for step in plan_node(scene_of(managed=gone))][:2] == ["nvidia_container", "docker_engine"]
    assert plan_node(scene) == ()
