"""The situation of a node from its facts."""

from __future__ import annotations

import dataclasses

import pytest

from provision.facts import NodeFacts, Unknown
from provision.facts.gpu import Gpu
from provision.facts.gpudirect import Nccl, PciRouting, Signing
from provision.facts.peer_modules import NvidiaModules, PeerMemory
from provision.facts.rdma import Gid, RdmaPort, RdmaStack
from provision.facts.system import Kind, NodeKind
from provision.gdr import Cards, Flavor, GdrPath, Stack
from provision.gdr.observed import architecture, missing_fact, situation, verdict_of
from provision.model.reason import reason
from tests.support.reasons import shown
from tests.unit.checks.conftest import healthy, kernel, rdma_device

BASE = healthy()
NO_PEERS = PeerMemory({}, frozenset(), "", (), False, frozenset(), False)  # noqa: FBT003


def node(**facts: object) -> NodeFacts:
    return dataclasses.replace(BASE, **facts)


def test_a_node_that_meets_all_conditions_uses_dma_buf():
    result = verdict_of(node())

    assert result.path is GdrPath.DMA_BUF
    assert shown(result.reasons[0]) == "gdr.path: DMA-BUF 550.90 open 6.1.0 gdr.inbox_stack 2.27.5"


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("NVIDIA H200", "", "hopper"),
        ("NVIDIA H100 80GB HBM3", "", "hopper"),
        ("NVIDIA A100-SXM4-80GB", "8.0", "ampere"),
        ("NVIDIA A10G", "", "ampere"),
        ("Tesla V100-SXM2-32GB", "", "volta"),
        ("Tesla P100-PCIE-16GB", "", "pascal"),
        ("GeForce GTX 1070 Ti", "", "pascal"),
        ("NVIDIA GeForce RTX 3060", "", "ampere"),
        ("NVIDIA GeForce RTX 5080", "12.0", "blackwell"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9", "ada"),
        ("NVIDIA GH200 480GB", "9.0", "grace-hopper"),
        ("NVIDIA B200", "10.0", "blackwell"),
        ("Tesla T4", "7.5", "turing"),
        ("NVIDIA of tomorrow", "99.0", ""),
    ],
)
def test_the_architecture_comes_from_capability_or_name(name, capability, expected):
    assert architecture(Gpu(0, name, "", "570", 1, "", capability)) == expected


@pytest.mark.parametrize(
    ("ofed", "stack"),
    [
        ("", Stack.INBOX),
        ("MLNX_OFED_LINUX-4.9-4.1.7.0", Stack.OFED_LEGACY),
        ("MLNX_OFED_LINUX-5.8-1.1.2.1", Stack.OFED),
        ("OFED-internal-24.10-0.7.0", Stack.OFED),
    ],
)
def test_the_rdma_stack_is_identified_by_its_version(ofed, stack):
    """DOCA's OFED calls itself internal, and is a current one."""
    assert situation(node(rdma=RdmaStack((rdma_device(),), 1, (), ofed))).stack is stack


def test_soft_roce_is_no_hardware_card():
    soft = RdmaStack((rdma_device("rxe0", driver=""),), 0, (), "")

    assert situation(node(rdma=soft)).cards is Cards.SOFT
    assert situation(node(rdma=RdmaStack((), 0, (), ""))).cards is Cards.NONE


@pytest.mark.parametrize(
    ("nccl", "expected"),
    [
        (Nccl(("2.9.9", "2.21.5"), ("2.27.5",)), "2.9.9"),
        (Nccl((), ("2.27.5",)), ""),
        (Nccl(None, ("2.27.5",)), "2.27.5"),
        (Unknown("hung: docker inspect"), ""),
    ],
    ids=["the container's oldest", "none in the container", "no container", "docker hangs"],
)
def test_nccl_is_the_oldest_that_jobs_can_load(nccl, expected):
    """The node's own NCCL counts only if no container runs."""
    assert situation(node(nccl=nccl)).nccl == expected


@pytest.mark.parametrize(
    ("peers", "modules", "expected"),
    [
        (dataclasses.replace(NO_PEERS, provider="ib_core"), {"ib_core"}, True),
        (dataclasses.replace(NO_PEERS, symvers=("/usr/src/ofa_kernel/default/Module.symvers",)), {"ib_core"}, False),
        (dataclasses.replace(NO_PEERS, symvers=("/usr/src/ofa_kernel/default/Module.symvers",)), set(), True),
        (NO_PEERS, set(), False),
    ],
    ids=["loaded", "installed, another is loaded", "installed, none is loaded", "nowhere"],
)
def test_the_provider_of_the_peer_memory_interface_is_detected(peers, modules, expected):
    """The running kernel decides; before the RDMA stack is loaded, its build files do."""
    assert situation(node(peer_memory=peers, modules=frozenset(modules))).evidence.peer_api is expected


def test_secure_boot_rejects_unsigned_modules():
    modules = NvidiaModules("535", "proprietary", "535", {"nvidia": "DKMS key", "nvidia_peermem": ""})
    on, off = Signing(True, True), Signing(True, False)  # noqa: FBT003

    assert situation(node(nvidia_modules=modules, signing=on)).evidence.refused == {"nvidia_peermem"}
    assert situation(node(nvidia_modules=modules, signing=off)).evidence.refused == frozenset()


def test_a_stub_is_detected_by_its_file_or_its_missing_registration():
    """A file without RDMA dependency, and a loaded module that is not bound, are stubs."""
    idle = dataclasses.replace(NO_PEERS, loaded={"nvidia_peermem": "535"})
    real = (kernel("6.1.0", running=True, ib_core="updates/ib_core.ko"),)

    assert situation(node()).evidence.peermem_stub is True
    assert situation(node(kernels=real)).evidence.peermem_stub is False
    assert situation(node(kernels=real, peer_memory=idle)).evidence.peermem_stub is True


def test_acs_and_iommu_count_only_on_physical_machines():
    """A virtual machine needs both."""
    pcie = PciRouting({"0000:06:00.0": "DMA-FQ", "0000:3b:00.0": "identity"}, ("0000:17:00.0",))
    machine = situation(node(pci_routing=pcie)).evidence
    virtual = situation(node(pci_routing=pcie, kind=Kind(NodeKind.VM, "kvm", sysctls_writable=True))).evidence

    assert (machine.redirecting, machine.translated) == (("0000:17:00.0",), ("0000:06:00.0",))
    assert (virtual.redirecting, virtual.translated) == ((), ())


def test_a_gid_index_counts_only_if_all_ports_share_it():
    other = Gid(5, "0000:0000:0000:0000:0000:ffff:0a4d:0002", "RoCE v2", "ens5")
    odd = dataclasses.replace(rdma_device("mlx5_1"), ports=(RdmaPort(1, "Ethernet", "ACTIVE", "", "", (other,)),))

    assert situation(node()).evidence.gid_index == 3
    assert situation(node(rdma=RdmaStack((rdma_device(), odd), 2, (), ""))).evidence.gid_index is None


def test_no_gpu_differs_from_missing_facts():
    hung = node(gpus=Unknown("hung: nvidia-smi"))

    assert verdict_of(node(gpus=(), gpu_pci=())).reasons == (reason("gdr.no_gpu"),)
    assert missing_fact(hung) == reason("gdr.fact_unavailable", cause="hung: nvidia-smi")
    assert verdict_of(hung).reasons == (missing_fact(hung),)
    assert situation(node()).flavor is Flavor.OPEN


def test_gpus_without_a_driver_have_no_path():
    result = verdict_of(node(gpus=(), nvidia_modules=NvidiaModules("", "", "", {})))

    assert (result.path, result.reasons) == (GdrPath.NONE, (reason("gdr.no_driver"),))
