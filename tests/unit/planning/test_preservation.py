"""Pre-existing configuration is preserved: a first plan has no disruptive step unless the inventory asks for one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from provision.components.docker_engine import REREAD, settings_of
from provision.facts import Unknown
from provision.facts.docker import DockerConfig, DockerService
from provision.facts.managed import Managed
from provision.facts.peer_status import PeerRecord
from provision.facts.records import Receipt
from provision.facts.system import Kind, NodeKind
from provision.model import Cluster, StepClass
from provision.planning import PlanScene, plan_node, preserved_variables
from provision.planning.preservation import unreadable_facts
from provision.workflow.sources import role_sources
from provision.workflow.survey import with_defaults, with_preserved
from tests.support.expressions import Role
from tests.support.modules import load
from tests.support.reasons import shown
from tests.unit.checks.conftest import healthy, rdma_device
from tests.unit.planning.conftest import JOB

NVIDIA = {"path": "/usr/bin/nvidia-container-runtime", "runtimeArgs": []}
DEEPOPS = {
    "data-root": "/raid/docker",
    "default-runtime": "nvidia",
    "default-shm-size": "1G",
    "default-ulimits": {"memlock": {"Name": "memlock", "Hard": -1, "Soft": -1}},
    "exec-opts": ["native.cgroupdriver=systemd"],
    "log-driver": "journald",
    "log-opts": {"tag": "{{.Name}}"},
    "registry-mirrors": ["https://mirror.example.org"],
    "runtimes": {"nvidia": NVIDIA},
}
PACKAGES = {"rdma-core": "2307mlnx47-1", "docker-ce": "5:24.0.7-1", "nvidia-container-toolkit": "1.14.3-1"}
BARE = Managed()


def config(options: dict[str, Any] | None) -> DockerConfig:
    return DockerConfig(exists=options is not None, options=options or {}, error="")


def site(options: dict[str, Any] | None = None, **facts: Any) -> Any:
    """Facts of a node with docker-ce, the NVIDIA runtime, MLNX_OFED and nvidia_peermem, and no receipt of ours."""
    usual = healthy()
    planned = {
        "packages": PACKAGES,
        "modules": frozenset({"ib_uverbs", "rdma_ucm", "nvidia_peermem", "mlx5_ib"}),
        "rdma": dataclasses.replace(usual.rdma, ofed="MLNX_OFED_LINUX-23.07-0.5.1.2"),
        "docker_config": config(DEEPOPS if options is None else options),
        "docker_info": dataclasses.replace(usual.docker_info, live_restore=False),
        "container": None,
        "container_ssh": None,
        "image": None,
        "peer_status": PeerRecord(),
        "managed": BARE,
        "receipts": {},
    }
    return dataclasses.replace(usual, **{**planned, **facts})


def scene(facts: Any, **variables: Any) -> PlanScene:
    """As ``plan`` makes it, of a node whose inventory says no more than an address, an image and `variables`."""
    said = {"cluster_data_address": "10.77.0.1", "training_image_reference": "r:5000/t:1", **variables}
    inventory = make(said)
    complete, _ = with_preserved(inventory, with_defaults(inventory), {"gpu1": facts})
    return PlanScene(complete.nodes[0], facts, complete, {"gpu1": facts}, {"debian 12": "tested"}, role_sources())


def make(variables: dict[str, Any]) -> Cluster:
    from provision.testing import make_cluster

    return make_cluster("gpu1", **variables)


def classes(facts: Any, **variables: Any) -> dict[str, StepClass]:
    return {step.role: step.step_class for step in plan_node(scene(facts, **variables))}


OTHER_DOCKERS = {
    "debian's": site({"log-opts": {"max-size": "5m"}}, packages={**PACKAGES, "docker.io": "20.10.24"}),
    "without a file": site({}, docker_config=config(None)),
    "with what nvidia-ctk writes": site({"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}),
    "with limits of two kinds": site({"default-ulimits": {"nofile": {"Name": "nofile", "Soft": 1, "Hard": 2}}}),
    "with odd values": site({"log-opts": 7, "default-address-pools": [{"base": "{{ x }}", "size": 24}]}),
    "in a container node": site(kind=Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False)),
    "beside the legacy nvidia-docker2": site(packages={"docker-ce": "5:19.03.15", "nvidia-docker2": "2.5.0"}),
    "beside another peer memory": site(modules=frozenset({"nv_peer_mem"})),
    "beside inbox RDMA": site(rdma=healthy().rdma),
}  # fmt: skip


@pytest.mark.parametrize("facts", [site(), *OTHER_DOCKERS.values()], ids=["DeepOps's", *OTHER_DOCKERS])
def test_a_first_plan_on_a_pre_existing_fleet_is_not_disruptive(facts):
    """Docker with its own settings, the NVIDIA runtime, the RDMA stack and peer memory stay as they serve."""
    planned = classes(facts)

    assert "docker_engine" in planned
    assert set(planned.values()) == {StepClass.SAFE}


def test_a_first_plan_on_a_pre_existing_fleet_does_not_wait_for_jobs():
    steps = plan_node(scene(site(managed=Managed(jobs=(JOB,)))))

    assert [step.role for step in steps if step.waits_for] == []


@pytest.mark.parametrize(
    ("asked", "role"),
    [
        ({"docker_engine_log_driver": "json-file"}, "docker_engine"),
        ({"docker_engine_data_root": "/data/docker"}, "docker_engine"),
        ({"docker_engine_source": "distribution"}, "docker_engine"),
        ({"docker_engine_daemon_options": {"bip": "10.9.0.1/24"}}, "docker_engine"),
        ({"cluster_http_proxy": "http://proxy:3128"}, "docker_engine"),
        ({"nvidia_container_flavor": "nvidia-docker2"}, "nvidia_container"),
    ],
)
def test_explicit_settings_of_the_inventory_are_planned_as_disruptive(asked, role):
    """And beside a job it waits."""
    steps = {step.role: step for step in plan_node(scene(site(managed=Managed(jobs=(JOB,))), **asked))}

    assert steps[role].step_class is StepClass.NEEDS_IDLE
    assert JOB in steps[role].waits_for
    assert role != "docker_engine" or "docker" in shown(steps[role].reasons[-1])


WITHOUT_TOOLKIT = {"docker-ce": "5:24.0.7-1", "rdma-core": "44"}


def test_missing_components_are_planned_as_disruptive():
    """GPUs do not get into a training container without a runtime, and docker looks for it when it starts."""
    steps = {step.role: step for step in plan_node(scene(site(packages=WITHOUT_TOOLKIT)))}

    assert {role for role, step in steps.items() if step.step_class is not StepClass.SAFE} == {
        "nvidia_container", "docker_engine",
    }  # fmt: skip
    assert "plan.never_applied" in tuple(map(shown, steps["docker_engine"].reasons))


@pytest.mark.parametrize(
    ("running", "jobs", "what"), [(0, (), "safe"), (1, (), "needs-idle"), (0, (JOB,), "needs-idle")]
)
def test_a_restart_of_docker_without_containers_is_not_disruptive(running, jobs, what):
    """And no job is there that could have it run something."""
    info = dataclasses.replace(healthy().docker_info, containers_running=running)
    planned = classes(site(packages=WITHOUT_TOOLKIT, docker_info=info, managed=Managed(jobs=jobs)))

    assert (planned["nvidia_container"].value, planned["docker_engine"].value) == (what, what)


def test_steps_on_a_bare_node_are_not_disruptive():
    """No docker that would have to be restarted, and nothing that would be kept."""
    none = DockerService(loaded=False, active="inactive", enabled="", client=False)
    bare = site(packages={"bash": "5"}, docker_service=none, docker_info=Unknown("none"), modules=frozenset(),
                docker_config=config(None), rdma=dataclasses.replace(healthy().rdma, ofed=""))  # fmt: skip

    assert set(classes(bare).values()) == {StepClass.SAFE}
    assert preserved_variables(make({}).nodes[0], bare) == {}


def test_preserved_settings_are_reported_as_role_variables():
    assert preserved_variables(make({}).nodes[0], site()) == {
        "rdma_stack": {"rdma_stack_source": "present"},
        "peer_memory": {"peer_memory_provider": "nvidia_peermem"},
        "docker_engine": {
            "docker_engine_source": "present",
            "docker_engine_live_restore_enabled": False,
            "docker_engine_address_pools": [],
            "docker_engine_default_ulimits": {"memlock": -1},
            "docker_engine_log_driver": "journald",
            "docker_engine_log_max_size": "",
            "docker_engine_log_max_files": 0,
            "docker_engine_data_root": "/raid/docker",
            "docker_engine_registry_mirrors": ["https://mirror.example.org"],
        },
    }


def test_settings_of_the_inventory_are_not_preserved():
    said = {"docker_engine_log_driver": "json-file", "peer_memory_provider": "dma_buf", "rdma_stack_source": "present"}
    planned = preserved_variables(make(said).nodes[0], site())

    assert list(planned) == ["docker_engine"]
    assert not set(said) & set(planned["docker_engine"])


def test_docker_of_an_interrupted_apply_is_not_pre_existing():
    """It may run already, by itself after a power cut, and without its settings."""
    mine = site({}, managed=Managed(brought=frozenset({"docker-ce"})))

    assert "docker_engine" not in preserved_variables(make({}).nodes[0], mine)


@pytest.mark.parametrize(
    ("sealed", "noted", "wanted"),
    [
        (True, {"kept": {"docker_engine_log_driver": "local"}}, {"docker_engine_log_driver": "local"}),
        (True, {}, None),
        (True, {"kept": {"docker_engine_data_root": "{{ lookup('pipe', 'id') }}", "ansible_user": "x"}}, None),
        (True, {"kept": "odd"}, None),
    ],
)
def test_settings_preserved_by_an_apply_remain_preserved(sealed, noted, wanted):
    """A receipt says it; a node cannot put any other variable, or Jinja, into what is run on the controller."""
    facts = site(receipts={"docker_engine": Receipt("docker_engine", {"inputs": noted})},
                 managed=Managed({"docker_engine": sealed}))  # fmt: skip

    assert preserved_variables(make({}).nodes[0], facts).get("docker_engine") == wanted


def texts_of(value):
    """All texts in a value, keys too."""
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in texts_of(part)]
    if isinstance(value, list):
        return [text for part in value for text in texts_of(part)]
    return [value]


EVIL = ("{{ lookup('pipe', 'id') }}", "fe80::1%{{ lookup('pipe', 'id') }}", "fe80::1%{% raw %}", "/x\n", "10.0.0.0/8\n")


@pytest.mark.parametrize("evil", EVIL)
def test_templates_from_a_node_do_not_reach_ansible(evil):
    """Ansible would run it on the controller; wherever it stands in daemon.json, and whatever a receipt says."""
    options = {
        "default-address-pools": [{"base": evil, "size": 24}], "log-driver": evil, "data-root": evil,
        "registry-mirrors": [f"https://{evil}"], "log-opts": {"max-size": evil, "max-file": evil},
        "default-ulimits": {evil: {"Name": evil, "Hard": 1, "Soft": 1}},
    }  # fmt: skip
    noted = {"docker_engine_address_pools": [{"base": evil, "size": 24}], "docker_engine_default_ulimits": {evil: 1}}
    receipt = {"docker_engine": Receipt("docker_engine", {"inputs": {"kept": noted}})}
    sealed = site(receipts=receipt, managed=Managed({"docker_engine": True}))

    assert evil not in texts_of(preserved_variables(make({}).nodes[0], site(options)))
    assert "docker_engine" not in preserved_variables(make({}).nodes[0], sealed)


def test_a_receipt_preserves_only_variables_of_its_role():
    """A node could otherwise turn off by one role what another one sees to."""
    noted = {"kept": {"peer_memory_enabled": False, "rdma_stack_source": "present"}}
    facts = site(receipts={"rdma_stack": Receipt("rdma_stack", {"inputs": noted})},
                 managed=Managed({"rdma_stack": True}))  # fmt: skip

    assert preserved_variables(make({}).nodes[0], facts)["rdma_stack"] == {"rdma_stack_source": "present"}


@pytest.mark.parametrize("fact", ["rdma", "packages", "peer_status", "modules", "docker_service", "docker_config"])
def test_unknown_facts_are_not_treated_as_absent(fact):
    """Defaults would replace pre-existing configuration; where a receipt records it, nothing is missing."""
    hung = {fact: Unknown("hung: x")}
    receipts = {role: Receipt(role, {}) for role in ("rdma_stack", "peer_memory", "nvidia_container", "docker_engine")}
    ours = {"receipts": receipts, "managed": Managed(dict.fromkeys(receipts, True))}

    assert unreadable_facts(make({}).nodes[0], site()) is None
    assert unreadable_facts(make({}).nodes[0], site(**hung)) == f"{fact}: hung: x"
    assert unreadable_facts(make({}).nodes[0], site(**hung, **ours)) is None


def test_a_manually_changed_receipt_preserves_nothing():
    """What stands there does."""
    receipt = Receipt("docker_engine", {"inputs": {"kept": {"docker_engine_log_driver": "local"}}})
    facts = site(receipts={"docker_engine": receipt}, managed=Managed({"docker_engine": False}))

    assert preserved_variables(make({}).nodes[0], facts)["docker_engine"]["docker_engine_log_driver"] == "journald"


@pytest.mark.parametrize(
    "odd", [None, True, 7, "text", [], [1, {}], {"x": None}, {"nofile": {"Hard": "x", "Name": []}}]
)
@pytest.mark.parametrize("key", ["log-opts", "log-driver", "default-ulimits", "default-address-pools", "data-root",
                                 "registry-mirrors", "runtimes", "live-restore"])  # fmt: skip
def test_a_plan_is_made_for_any_daemon_json(key, odd):
    assert classes(site({key: odd}))["docker_engine"] in StepClass


def test_soft_roce_on_another_interface_is_removed():
    soft = dataclasses.replace(healthy().rdma, devices=(rdma_device("rxe0", driver=""),))
    asked = {"rdma_stack_soft_roce_enabled": True, "rdma_stack_soft_roce_interface": "ens9"}

    assert classes(site(rdma=soft), **asked)["rdma_stack"] is StepClass.NEEDS_IDLE
    assert (
        classes(site(rdma=soft), **{**asked, "rdma_stack_soft_roce_interface": "ens4"})["rdma_stack"] is StepClass.SAFE
    )


SETTINGS = [
    {},
    {"docker_engine_log_driver": "journald", "docker_engine_log_max_size": "", "docker_engine_log_max_files": 0},
    {"docker_engine_address_pools": [], "docker_engine_default_ulimits": {}, "docker_engine_log_max_files": 9},
    {"docker_engine_data_root": "/raid", "docker_engine_registry_mirrors": ["https://m"]},
    {"docker_engine_live_restore_enabled": False},
    {"docker_engine_daemon_options": {"bip": "10.9.0.1/24"}, "cluster_container_runtimes": {"kata": {"path": "kata"}}},
]  # fmt: skip


@pytest.mark.parametrize("said", SETTINGS)
def test_plan_and_role_use_the_same_docker_settings(said):
    """Were they not the same, docker would be restarted by a step that calls itself safe."""
    node = {"memlock_limit": -1, "nofile_limit": -1, "gpus_present": False}
    role = Role("docker_engine", **said, platform_node=node, nvidia_container_enabled=True)
    variables = with_defaults(make(said)).nodes[0].variables

    assert settings_of(variables, nvidia=False) == role.value("__docker_engine_settings")


def test_the_plan_distinguishes_settings_that_docker_reloads():
    load("docker_engine", "docker_engine_config")
    from ansible.module_utils.docker_engine_json import RELOADABLE

    assert REREAD == RELOADABLE
    assert "features" not in REREAD  # dockerd chooses its image store when it starts
