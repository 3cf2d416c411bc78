"""A healthy node, and the cluster around it; tests break one thing at a time."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import ClassVar

import pytest

from provision.checks import judge
from provision.facts import NodeFacts
from provision.facts.container import Container, Process
from provision.facts.container_ssh import ContainerSsh, ContainerTrust
from provision.facts.docker import DockerConfig, DockerInfo, DockerService, Image
from provision.facts.fabric import Card, Fabric, Interface
from provision.facts.firewall import Firewall
from provision.facts.gpu import Gpu
from provision.facts.gpu_health import GpuHealth
from provision.facts.gpudirect import DmaBuf, Nccl, PciRouting, Signing
from provision.facts.kernel import TimeSync
from provision.facts.network import Address, Listening, Route
from provision.facts.nvidia_container import NvidiaContainer
from provision.facts.nvidia_driver import DkmsTree, NvidiaDevice, NvidiaDriver
from provision.facts.nvlink import FabricManager, Links
from provision.facts.package_proxy import PackageProxy
from provision.facts.pci_links import PciLink
from provision.facts.peer_modules import InstalledKernel, ModuleFile, NvidiaModules, PeerMemory
from provision.facts.peer_status import JudgedKernel, PeerRecord, PeerStatus, PeerUnit
from provision.facts.rdma import Gid, RdmaDevice, RdmaPort, RdmaStack
from provision.facts.rescue import Rescue
from provision.facts.selinux import Selinux
from provision.facts.system import Boot, Disk, Hardware, Kind, Limits, NodeKind, System
from provision.facts.xid import XidLog
from provision.model import CheckResult, Cluster, Connection, Node, Topology, TopologyGpu, TopologyNic

VARIABLES = {
    "base_system_sysctls": {"vm.max_map_count": 262144},
    "docker_engine_data_root": "/var/lib/docker",
    "docker_engine_registry_mirrors": [],
    "docker_engine_registry_ca": [{"registry": "r:5000", "certificate": "-----BEGIN-----\nAA\n-----END-----"}],
    "training_image_reference": "r:5000/t:1",
    "training_image_digest": "sha256:22",
    "training_container_name": "provision-training",
    "training_container_ulimits": {"memlock": -1, "nofile": 1048576, "stack": 67108864},
    "container_ssh_port": 2222,
    "cluster_package_cache": "gpu1",
    "cluster_package_cache_hosts": ["deb.example.org"],
    "cluster_package_cache_port": 3128,
    "fabric_host_mtu": 9000,
    "fabric_host_arp_enabled": True,
    "fabric_host_interface_names": {"ens4": "0000:3b:00.0"},
    "fabric_host_hugepages_2mib": 512,
    "fabric_host_cpu_governor": "performance",
    "fabric_host_kernel_arguments": ["iommu=pt"],
    "fabric_host_pcie_max_read_request": 4096,
    "fabric_host_pcie_acs": "disabled",
    "fabric_host_roce_mode": "v2",
    "fabric_host_roce_tos": 106,
    "fabric_host_roce_trust": "dscp",
    "fabric_host_irq_affinity": "local",
    "fabric_host_irqbalance": "stopped",
    "fabric_host_roce_pfc": "0,0,0,1,0,0,0,0",
}
UNLIMITED = {"Max locked memory": None, "Max open files": 1048576, "Max stack size": 67108864}
CUT = {"Max locked memory": 8388608, "Max open files": 20000, "Max stack size": 67108864}


class Counted(dict):
    """A mapping that counts how often something is looked up in it."""

    lookups: ClassVar[Counter[str]] = Counter()

    def get(self, key, default=None):
        self.lookups["get"] += 1
        return super().get(key, default)

    def __getitem__(self, key):
        self.lookups["item"] += 1
        return super().__getitem__(key)

    def __contains__(self, key):
        self.lookups["in"] += 1
        return super().__contains__(key)


def make_node(name: str, address: str, **variables: object) -> Node:
    """A node of the inventory with the variables of a healthy one."""
    return Node(name, Connection(address), {**VARIABLES, "cluster_data_address": address, **variables})


def make_cluster(**variables: object) -> Cluster:
    """Two nodes."""
    nodes = (make_node("gpu1", "10.77.0.1", **variables), make_node("gpu2", "10.77.0.2", **variables))
    return Cluster("test", __import__("pathlib").Path("hosts.yml"), nodes)


def rdma_device(
    name: str = "mlx5_0", *, driver: str = "mlx5_core", state: str = "ACTIVE", gid: bool = True
) -> RdmaDevice:
    """A RoCE card's device."""
    gids = (Gid(3, "0000:0000:0000:0000:0000:ffff:0a4d:0001", "RoCE v2", "ens4"),) if gid else ()
    port = RdmaPort(1, "Ethernet", state, "LinkUp", "100 Gb/sec", gids)
    return RdmaDevice(name, driver, f"uverbs{name[-1]}", ("ens4",), (port,), "20.38.1002", "MT_0000000223")


def gpu(index: int = 0, *, name: str = "NVIDIA A100-SXM4-80GB", **health: object) -> Gpu:
    """A GPU in good health, at a bus address of its own; health replaces."""
    good = GpuHealth(
        ecc=True, ecc_pending=True, uncorrected=0, uncorrected_ever=0, sram_threshold_exceeded=False,
        rows_correctable=0, rows_uncorrectable=0, rows_pending=False, rows_failure=False,
        pcie_generation=1, pcie_generation_max=4, pcie_width=16, pcie_width_max=16, clock_events=1, recovery="None",
    )  # fmt: skip
    return Gpu(
        index,
        name,
        f"GPU-{index}",
        "550.90",
        81920,
        f"00000000:{index + 6:02X}:00.0",
        "8.0",
        "92.00.45.00.03",
        dataclasses.replace(good, **health),
    )


def linked(*kinds: str) -> Topology:
    """As many GPUs as classes, NODE from each other; the classes are those to the card mlx5_0."""
    gpus = [["X" if a == b else "NODE" for b in range(len(kinds))] for a in range(len(kinds))]
    rows = [(*row, kind) for row, kind in zip(gpus, kinds, strict=True)]
    return Topology(
        tuple(TopologyGpu(index, 0, ("0-15",)) for index in range(len(kinds))),
        (TopologyNic("mlx5_0", 0),),
        (*rows, (*kinds, "X")),
    )


def pci_link(address: str, width: int = 16, *, speed: float = 2.5, slot: int = 16) -> PciLink:
    """The link of an idle GPU of the 4th generation, or of a network card (bus 3b and up)."""
    return PciLink(address, address < "0000:3b", width, 16, speed, 16.0, slot, 16.0)


def kernel(release: str, *, running: bool = False, headers: bool = True, **files: str) -> InstalledKernel:
    """A kernel with the NVIDIA modules, which do not use the RDMA stack, and its own RDMA stack; files replace."""
    paths = {
        "nvidia": "updates/dkms/nvidia.ko",
        "nvidia_peermem": "updates/dkms/nvidia-peermem.ko",
        "ib_core": "kernel/drivers/infiniband/core/ib_core.ko",
        **files,
    }
    needs = frozenset({"ib_core", "nvidia"}) if paths["ib_core"].startswith("updates/") else frozenset({"nvidia"})
    modules = {
        name: ModuleFile(path, needs if name.endswith("peermem") else frozenset()) for name, path in paths.items()
    }
    return InstalledKernel(release, running, headers, {name: file for name, file in modules.items() if file.path})


def peer_status(*, kernels: tuple[JudgedKernel, ...] | None = None, **fields: object) -> PeerStatus:
    """What a healthy node wrote when it booted, with nv_peer_mem wanted; some fields replaced."""
    usual = {
        "boot_id": "b",
        "kernel": "6.1.0",
        "provider": "nv_peer_mem",
        "module": "nv_peer_mem",
        "state": "ready",
        "since": "2026-11-21T10:00:00Z",
    }
    return PeerStatus(**{**usual, **fields}, kernels=(JudgedKernel("6.1.0", ok=True),) if kernels is None else kernels)


def peer_record(wanted: str = "nv_peer_mem", *, unit: PeerUnit | None = None, **fields: object) -> PeerRecord:
    """A record with the status of a healthy node; fields of the status replaced."""
    return PeerRecord(wanted, peer_status(**fields), "", 30, unit or PeerUnit("active", "success", "enabled"))


def healthy(number: int = 1) -> NodeFacts:
    """Facts of a node that has all that VARIABLES want: one GPU, one RoCE card."""
    names = {"gpu1": ("10.77.0.1",), "gpu2": ("10.77.0.2",)}
    processes = (Process(10, "docker-init"), Process(11, "container-entry"), Process(12, "sshd"))
    return NodeFacts(
        system=System("debian", "12", "Debian GNU/Linux 12", "6.1.0", "x86_64", python3="/usr/bin/python3"),
        kind=Kind(NodeKind.METAL, "NVIDIA DGX", sysctls_writable=True),
        boot=Boot(7200, "b"),
        clock=1_800_000_000,
        read_at=1_800_000_004.0,
        hardware=Hardware(16, 64000),
        limits=Limits(UNLIMITED, UNLIMITED),
        disks=(Disk("/var/lib/docker", 50000, 100000),),
        sysctls={"vm.max_map_count": "262144"},
        modules=frozenset({"rdma_rxe"}),
        packages={"rdma-core": "44", "nvidia-container-toolkit": "1.17.8-1", "libnvidia-container1": "1.17.8-1"},
        time_sync=TimeSync(synchronized=True, services=("chrony",)),
        addresses=(Address("ens4", f"10.77.0.{number}", 24, "global"),),
        routes=(Route("default", "ens3", ""),),
        names=names,
        listening=(Listening(f"10.77.0.{number}", 2222),),
        firewall=Firewall(""),
        fabric=Fabric(
            {"ens3": Interface(1500), "ens4": Interface(9000, "0000:3b:00.0", 2, 1, 2)},
            {2048: 512, 1048576: 0},
            frozenset({"performance"}),
            kernel_arguments=frozenset({"root=UUID=0", "ro", "iommu=pt"}),
            boot_tool="grub-mkconfig",
            boot_arguments=frozenset({"root=UUID=0", "ro", "iommu=pt"}),
            cards={
                "0000:3b:00.0": Card(("0000:3a:00.0",), peer=True, max_read_request=4096),
                "0000:06:00.0": Card(("0000:05:00.0",), peer=True),
                "0000:01:00.0": Card(("0000:00:02.0",), peer=False, max_read_request=512),
            },
            roce={("mlx5_0", 1): ("v2", 106)},
            names={"ens4": "0000:3b:00.0"},
            interrupts={"0000:3b:00.0": 0},
            qos={"ens4": {"trust": "dscp", "pfc": "0,0,0,1,0,0,0,0"}},
        ),
        package_proxy=PackageProxy("http://10.77.0.1:3128", "ok"),
        rescue=Rescue("confirmed", "network settings of ens4"),
        selinux=Selinux("disabled"),
        selinux_denials=(),
        rdma=RdmaStack((rdma_device(),), 1, ("uverbs0", "rdma_cm"), ""),
        rdma_counters={},
        gpus=(gpu(),),
        gpu_pci=("0000:06:00.0",),
        nvlinks={0: Links(12)},
        fabric_manager=FabricManager(6, "active"),
        xids=XidLog(7200.0, 0.0, ()),
        pci_links=(pci_link("0000:06:00.0"), pci_link("0000:3b:00.0", speed=16.0)),
        topology=linked("PIX"),
        kernels=(kernel("6.1.0", running=True),),
        nvidia_modules=NvidiaModules("550.90", "open", "550.90", {"nvidia": "", "nvidia_peermem": ""}),
        nvidia_driver=NvidiaDriver(
            gpus=(NvidiaDevice("0000:06:00.0", "20b2"),),
            trees=(DkmsTree("nvidia", "550.90", built=True),),
            nouveau_blocked=True,
            persistence="active",
            persistence_enabled=True,
        ),
        peer_memory=PeerMemory({}, frozenset(), "", (), False, frozenset(), False),  # noqa: FBT003
        peer_status=peer_record("dma_buf", provider="dma_buf", module=""),
        dma_buf=DmaBuf(True, (), True),  # noqa: FBT003
        signing=Signing(False, False),  # noqa: FBT003
        pci_routing=PciRouting({"0000:06:00.0": "", "0000:3b:00.0": ""}, ()),
        nccl=Nccl(("2.27.5",), ()),
        docker_service=DockerService(loaded=True, active="active", enabled="enabled", client=True),
        docker_info=DockerInfo(
            "20.10.24", "overlay2", "/var/lib/docker", "systemd", "2", True, ("nvidia", "runc"), "runc", (), (), 1  # noqa: FBT003
        ),
        docker_config=DockerConfig(True, {}, "", {"r:5000": "-----BEGIN-----\nAA\n-----END-----\n"}),  # noqa: FBT003
        nvidia_container=NvidiaContainer("/usr/bin/nvidia-container-runtime-hook", "", "", ()),
        image=Image("sha256:11", ("r:5000/t@sha256:22",), ("r:5000/t:1",)),
        container=Container(
            "running", 0, "sha256:11", "r:5000/t:1", {}, False, "host", (), 1, 0, UNLIMITED,  # noqa: FBT003
            ("infiniband/uverbs0", "infiniband/rdma_cm", "nvidia0"), processes,
        ),
        container_ssh=ContainerSsh(
            {"ssh_host_ed25519_key": "600", "id_ed25519": "600"},
            f"ssh-ed25519 KEY{number}",
            f"ssh-ed25519 CLIENT{number}",
        ),
        container_trust=ContainerTrust(
            {"[gpu1]:2222": ("ssh-ed25519 KEY1",), "[gpu2]:2222": ("ssh-ed25519 KEY2",)},
            ("ssh-ed25519 CLIENT1", "ssh-ed25519 CLIENT2"),
            {"gpu1": ("ssh-ed25519 CLIENT1",), "gpu2": ("ssh-ed25519 CLIENT2",)},
            ("gpu1", "gpu2"),
        ),
        receipts={},
        simulated={},
    )  # fmt: skip


@pytest.fixture
def judged():
    """Judge gpu1 with some facts and variables replaced; returns the results by id."""

    def run(variables: dict[str, object] | None = None, **facts: object) -> dict[str, CheckResult]:
        cluster = make_cluster(**(variables or {}))
        mine = dataclasses.replace(healthy(), **facts)
        results = judge(
            cluster.nodes[0],
            mine,
            cluster,
            all_facts={"gpu1": mine, "gpu2": healthy(2)},
            supported={"debian 12": "tested", "debian 13": "tested"},
        )
        return {result.id: result for result in results}

    return run
