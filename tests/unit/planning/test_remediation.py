"""Failing checks that apply cannot fix are reported, and put no role in the plan."""

from __future__ import annotations

import dataclasses
from ipaddress import ip_network

import pytest

from provision.checks import CHECKS
from provision.components import COMPONENTS, ROLES
from provision.facts import Unknown
from provision.facts.docker import DockerConfig, DockerService
from provision.facts.firewall import Firewall, UfwRule
from provision.facts.kernel import TimeSync
from provision.facts.peer_modules import PeerMemory
from provision.facts.peer_status import JudgedKernel
from provision.facts.rdma import RdmaStack
from provision.facts.records import Receipt
from provision.facts.selinux import Selinux
from provision.planning import findings, plan_node
from provision.report.reasons import catalogue
from tests.support.reasons import shown
from tests.unit.checks.conftest import Counted, kernel, peer_record, rdma_device
from tests.unit.checks.test_peer_memory import WITH_OFED, peers
from tests.unit.planning.conftest import cluster_of, facts_of, receipts_of, scene_of

HEALTHY = facts_of(cluster_of())
DOWN = dataclasses.replace(HEALTHY.rdma, devices=(rdma_device(state="DOWN"),))
SOFT = dataclasses.replace(rdma_device("rxe0", driver="", state="DOWN"), netdevs=("ens4",))
BOTH = {"nv_peer_mem": "1", "nvidia_peermem": "2"}
DISABLED = DockerService(loaded=True, active="active", enabled="disabled", client=True)
NEVER = {check for component in COMPONENTS.values() for check in component.never_fixes}
SOMETIMES = {check for component in COMPONENTS.values() for check in component.fixes_if}
ALWAYS = {name for name in CHECKS if name.partition(".")[0] in ROLES} - NEVER - SOMETIMES
APPLY = {".".join(code.split(".")[:2]) for code, wording in catalogue().items() if "provision apply" in wording.remedy}


def test_every_role_check_is_classified_as_fixable_or_not():
    """A new check names apply in a remedy, or its component says that no apply fixes it."""
    assert {"peer_memory.binding"} == ALWAYS - APPLY  # fixed by an apply after the operator rebuilt the driver
    assert not NEVER & SOMETIMES


def roles(scene):
    return [step.role for step in plan_node(scene)]


NOT_FIXED = {
    "node.disks": {"disks": (dataclasses.replace(HEALTHY.disks[0], writable=False),)},
    "gpu.count": {"gpu_pci": (*HEALTHY.gpu_pci, "0000:07:00.0")},
    "rdma_stack.devices": {"rdma": DOWN},
    "docker_engine.storage": {"disks": (dataclasses.replace(HEALTHY.disks[0], free_mib=1),)},
    "docker_engine.selinux": {
        "selinux": Selinux("enforcing", types={"/var/lib/docker": "var_lib_t"}),
        "packages": {**HEALTHY.packages, "container-selinux": "2"},
    },
    "base_system.firewall": {
        "firewall": Firewall("ufw", rules=(UfwRule("deny", ip_network("10.77.0.0/24"), (), ""),))
    },
    "gpu.driver": {"gpus": Unknown("hung: nvidia-smi")},
    "docker_engine.service": {"docker_info": Unknown("hung: docker info")},
    "nvidia_container.toolkit": {"packages": {**HEALTHY.packages, "libnvidia-container1": "1.0.0-1"}},
    "peer_memory.modules": {
        "peer_memory": PeerMemory(BOTH, frozenset(BOTH), "", (), True, frozenset(), False),  # noqa: FBT003
    },
}  # fmt: skip


@pytest.mark.parametrize("check", NOT_FIXED)
def test_a_problem_that_apply_cannot_fix_is_a_finding_and_no_step(check):
    scene = scene_of(**NOT_FIXED[check])

    assert roles(scene) == []
    assert any(text.startswith(f"plan.finding: {check} ") for text in tuple(map(shown, findings(scene))))


FIXED = {
    "docker_engine.service": {"docker_service": DISABLED},
    "docker_engine.registry_ca": {"docker_config": DockerConfig(exists=True, options={}, error="")},
    "nvidia_container.toolkit": {"packages": {"rdma-core": "44"}},
    "base_system.sysctls": {"sysctls": {"vm.max_map_count": "1"}},
    "training_container.running": {"container": None},
    "base_system.firewall": {"firewall": Firewall("ufw")},
    "docker_engine.selinux": {"selinux": Selinux("enforcing")},
}  # fmt: skip


@pytest.mark.parametrize("check", FIXED)
def test_a_problem_that_apply_can_fix_is_a_step_and_no_finding(check):
    scene = scene_of(**FIXED[check])

    assert check.partition(".")[0] in roles(scene)
    assert tuple(map(shown, findings(scene))) == ()


@pytest.mark.parametrize("facts", [{"time_sync": TimeSync(synchronized=False, services=())}, {"sysctls": {}}])
def test_a_warning_is_neither_step_nor_finding(facts):
    scene = scene_of(**facts)

    assert scene.failing

    assert roles(scene) == []
    assert tuple(map(shown, findings(scene))) == ()


@pytest.mark.parametrize(("devices", "wanted"), [((), ["rdma_stack"]), ((SOFT,), [])])
def test_a_missing_soft_roce_device_is_a_step_and_one_without_link_a_finding(devices, wanted):
    cluster = cluster_of(rdma_stack_soft_roce_enabled=True, fabric_host_enabled=False)
    stack = RdmaStack((rdma_device(), *devices), 1, ("uverbs0", "rdma_cm"), "")
    scene = scene_of(before=cluster, now=cluster, rdma=stack)

    assert roles(scene)[:1] == wanted
    assert ("rdma_stack.soft_roce" in " ".join(tuple(map(shown, findings(scene))))) is not bool(wanted)


@pytest.mark.parametrize(("provider", "wanted"), [("auto", True), ("nvidia_peermem", True), ("none", False)])
def test_a_better_path_for_gpu_memory_is_planned_unless_the_inventory_selects_one(provider, wanted):
    cluster = cluster_of(peer_memory_provider=provider)
    scene = scene_of(before=cluster, now=cluster, **WITH_OFED, peer_memory=peers())

    assert "peer_memory.path" in {check.id for check in scene.failing}
    assert ("peer_memory" in roles(scene)) is wanted


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (peer_record("dma_buf", provider="dma_buf", module="", boot_id="other"), []),  # a reload does
        (peer_record("nv_peer_mem", provider="dma_buf", module=""), ["peer_memory"]),  # an apply was not finished
    ],
)
def test_a_failed_boot_is_a_step_only_if_apply_can_fix_it(record, wanted):
    assert roles(scene_of(peer_status=record)) == wanted
    assert bool(tuple(map(shown, findings(scene_of(peer_status=record))))) is not bool(wanted)


WITHOUT_HEADERS = JudgedKernel(
    "6.1.9", ok=False, cause="headers_missing", explanation="no headers of 6.1.9", remedy="Install them."
)
LACKING = {
    "kernels": (kernel("6.1.0", running=True), kernel("6.1.9", nvidia="", nvidia_peermem="")),
    "peer_memory": PeerMemory({"nvidia_peermem": "1"}, frozenset({"nvidia_peermem"}), "", (), True, frozenset(), False),  # noqa: FBT003
    "peer_status": peer_record(
        "nvidia_peermem", provider="nvidia_peermem", module="nvidia_peermem",
        kernels=(JudgedKernel("6.1.0", ok=True), WITHOUT_HEADERS),
    ),
}  # fmt: skip


def test_an_installed_kernel_without_the_module_is_a_step():
    (step,) = plan_node(scene_of(**LACKING))

    assert step.role == "peer_memory"
    assert "peer_memory.kernels.not_built" in shown(step.reasons[0])


def test_a_kernel_whose_build_failed_is_not_planned_again():
    receipts = receipts_of(cluster_of())
    tried = {"incomplete": ["6.1.9"]}
    content = {**receipts["peer_memory"].content, **tried}

    assert roles(scene_of(**LACKING, receipts={**receipts, "peer_memory": Receipt("peer_memory", content)})) == []


def test_a_container_of_the_configured_image_has_no_step():
    cluster = cluster_of(training_container_image="r:5000/mine:1")
    container = dataclasses.replace(HEALTHY.container, image_id="sha256:77")

    assert roles(scene_of(before=cluster, now=cluster, container=container)) == []
    assert roles(scene_of(container=container)) == ["training_container", "container_ssh"]


def test_keys_of_an_unreachable_node_plan_no_other_nodes():
    """It brings them when it takes part again; until then every apply would run on all nodes, and never help."""
    cluster = cluster_of(3)
    here = scene_of(before=cluster, now=cluster)
    known = dataclasses.replace(here.facts, names={**here.facts.names, "gpu3": ("10.77.0.3",)})
    everybody = {**here.all_facts, "gpu1": known}
    without = {name: facts for name, facts in everybody.items() if name != "gpu3"}

    lost = dataclasses.replace(here, facts=known, all_facts=without)
    assert roles(lost) == []
    assert (
        shown(findings(lost)[0])
        == "plan.finding: container_ssh.known_hosts container_ssh.known_hosts.missing gpu3 gpu3"
    )

    back = dataclasses.replace(here, facts=known, all_facts=everybody)
    assert roles(back) == ["container_ssh"]
    assert tuple(map(shown, findings(back))) == ()


def test_keys_of_removed_nodes_are_removed():
    trust = HEALTHY.container_trust
    more = dataclasses.replace(trust, authorized_nodes={**trust.authorized_nodes, "gone": ("ssh-ed25519 X",)})

    assert roles(scene_of(container_trust=more)) == ["container_ssh"]


def test_missing_keys_are_evaluated_once_for_nodes_with_equal_gaps():
    """A thousand nodes lack the key of one that was added: that is no million of questions."""
    cluster = cluster_of(60)
    trust = HEALTHY.container_trust
    shared = {"container_trust": trust, "names": {**HEALTHY.names}}
    everybody = Counted({n.name: dataclasses.replace(facts_of(cluster, n.name), **shared) for n in cluster.nodes})
    base = scene_of(now=cluster)
    scenes = [dataclasses.replace(base, node=n, facts=everybody[n.name], all_facts=everybody) for n in cluster.nodes]
    Counted.lookups.clear()

    assert {tuple(roles(scene)) for scene in scenes} == {("container_ssh",)}
    assert sum(Counted.lookups.values()) < 20 * len(scenes)
