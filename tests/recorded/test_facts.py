"""The parsers of facts on outputs of real machines."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from provision.facts import RawOutput
from provision.facts.gpu import GpusFact
from provision.facts.gpu_health import GpuHealth, health
from provision.facts.kernel import ModulesFact
from provision.facts.nvlink import Links, NvLinksFact
from provision.facts.peer_modules import PeerMemoryFact
from provision.facts.rdma import RdmaPort
from provision.facts.topology import TopologyFact
from provision.topology.links import card_links
from tests.recorded import data


def recorded(name: str) -> RawOutput:
    return RawOutput(data.recorded(name), 0)


@pytest.mark.parametrize(
    ("name", "count", "product", "driver", "memory"),
    [
        ("nvidia-smi_query_csv_4xA100.txt", 4, "NVIDIA A100-SXM4-80GB", "580.105.08", 81920),
        ("nvidia-smi_query_csv_8xH200.txt", 8, "NVIDIA H200", "570.211.01", 143771),
        ("nvidia-smi_query_csv_rtx5080_vm_uuid_busid.txt", 1, "NVIDIA GeForce RTX 5080", "580.159.03", 16303),
    ],
)
def test_gpus_of_real_machines(name, count, product, driver, memory):
    """Columns are identified by their titles, in any order and with units."""
    gpus = GpusFact().parse(recorded(f"rdma/{name}"))

    assert [gpu.index for gpu in gpus] == list(range(count))
    assert {(gpu.name, gpu.driver, gpu.memory_mib) for gpu in gpus} == {(product, driver, memory)}


@pytest.mark.parametrize(
    "name",
    [
        "lsmod_nvidia_peermem_bound_h100.txt",
        "lsmod_nvidia_peermem_nvidia_fs.txt",
        "lsmod_nvidia_peermem_under_ib_uverbs_driver580.txt",
    ],
)
def test_modules_of_real_machines(name):
    modules = ModulesFact().parse(recorded(f"rdma/{name}"))

    assert "nvidia_peermem" in modules
    assert "Module" not in modules


@pytest.mark.parametrize(
    ("name", "module", "bound"),
    [
        ("lsmod_nvidia_peermem_bound_h100.txt", "nvidia_peermem", True),
        ("lsmod_nvidia_peermem_under_ib_uverbs_driver580.txt", "nvidia_peermem", True),
        ("lsmod_nvidia_peermem_nvidia_fs.txt", "nvidia_peermem", False),
        ("lsmod_nv_peer_mem_and_ibdev2netdev_egx.txt", "nv_peer_mem", True),
    ],
    ids=["used by ib_core", "used by ib_uverbs alone", "loaded and unused", "nv_peer_mem"],
)
def test_peer_memory_modules_of_real_machines(name, module, bound):
    """A module counts as bound only if the RDMA stack lists it as a user."""
    peers = PeerMemoryFact().parse(recorded(f"rdma/{name}"))

    assert set(peers.loaded) == {module}
    assert (module in peers.bound) is bound


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("nvidia-smi_query_csv_4xA100.txt", "8.0"),
        ("nvidia-smi_query_csv_8xH200.txt", ""),
        ("nvidia-smi_query_csv_rtx5080_vm_uuid_busid.txt", "12.0"),
    ],
)
def test_compute_capabilities_of_real_machines(name, capability):
    assert {gpu.compute_capability for gpu in GpusFact().parse(recorded(f"rdma/{name}"))} == {capability}


@pytest.mark.parametrize(
    ("name", "gpu", "near"),
    [
        ("h20_8gpu_NV18_8nic_PIX_NODE_rail.txt", 0, {"mlx5_1": "PIX"}),
        ("h800_container_4of8gpu_17nic_no_affinity.txt", 3, {"mlx5_8": "PIX", "mlx5_16": "PIX"}),
        ("dgx1p_8xP100_RUNTOGETHER_header.txt", 2, {"mlx5_1": "PIX"}),
        ("dgxa100_8xA100_12xmlx5_inline.txt", 4, {"mlx5_6": "PXB", "mlx5_7": "PXB"}),
        ("ansi_underlined_header_2gpu_NV12.txt", 0, {"NIC0": "PXB", "NIC1": "PXB"}),
        ("k80_4gpu_PIX_SOC_1xmlx5_oldlegend.txt", 0, {}),
        ("a100pcie_1gpu_4nic_padded_by_hand.txt", 0, {}),
    ],
)
def test_cards_near_a_gpu_on_real_machines(name, gpu, near):
    """Old and new headings, with and without legends, tabs and spaces."""
    links = card_links(TopologyFact().parse(recorded(f"topo/{name}")))
    numbered = {card: kind for card, kind in links[gpu].items() if kind in {"PIX", "PXB"}}

    assert numbered == near


def test_the_old_name_of_the_farthest_class_is_replaced():
    """SOC of old drivers is SYS of current ones."""
    links = card_links(TopologyFact().parse(recorded("topo/k80_4gpu_PIX_SOC_1xmlx5_oldlegend.txt")))

    assert {gpu: cards["mlx5_0"] for gpu, cards in links.items()} == {0: "SYS", 1: "SYS", 2: "PHB", 3: "PHB"}


def test_the_vbios_of_a_real_gpu():
    (gpu,) = GpusFact().parse(recorded("rdma/nvidia-smi_query_csv_rtx5080_vm_uuid_busid.txt"))

    assert (gpu.vbios, gpu.health) == ("98.03.3B.C0.3E", GpuHealth())


def test_links_of_a_real_machine():
    assert NvLinksFact().parse(recorded("rdma/nvidia-smi_nvlink_s_a100.txt")) == {gpu: Links(12) for gpu in range(8)}


PATHS = {
    "mig.mode.current": "mig_mode/current_mig",
    "ecc.mode.current": "ecc_mode/current_ecc",
    "ecc.mode.pending": "ecc_mode/pending_ecc",
    "ecc.errors.uncorrected.volatile.total": "ecc_errors/volatile/dram_uncorrectable",
    "ecc.errors.uncorrected.aggregate.total": "ecc_errors/aggregate/dram_uncorrectable",
    "retired_pages.pending": "retired_pages/pending_retirement",
    "pcie.link.gen.current": "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
    "pcie.link.gen.max": "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
    "pcie.link.width.current": "pci/pci_gpu_link_info/link_widths/current_link_width",
    "pcie.link.width.max": "pci/pci_gpu_link_info/link_widths/max_link_width",
    "fabric.state": "fabric/state",
    "fabric.status": "fabric/status",
    "remapped_rows.correctable": "remapped_rows/remapped_row_corr",
    "remapped_rows.uncorrectable": "remapped_rows/remapped_row_unc",
    "remapped_rows.pending": "remapped_rows/remapped_row_pending",
    "remapped_rows.failure": "remapped_rows/remapped_row_failure",
}
"""Where `-q -x` has what the query's columns have, in the same words."""


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (
            "nvidia-smi_q_x_a100-sxm4-v12.xml",  # MIG on: remapped rows are N/A
            {"mig": True, "ecc": True, "uncorrected": 0, "rows_pending": None, "pcie_width": 16, "pcie_width_max": 16},
        ),
        (
            "nvidia-smi_q_x_a10g.xml",  # a cloud's card: 8 lanes, and the first generation while idle
            {"mig": False, "ecc": True, "rows_pending": False, "rows_failure": False, "rows_uncorrectable": 0,
             "pcie_generation": 1, "pcie_generation_max": 4, "pcie_width": 8, "pcie_width_max": 16},
        ),
        (
            "nvidia-smi_q_x_rtx-3060-v12.xml",  # a consumer card: neither ECC nor fabric
            {"ecc": None, "uncorrected": None, "rows_pending": None, "pages_pending": None, "fabric_state": "",
             "pcie_generation": 1, "pcie_width": 16},
        ),
        ("nvidia-smi_q_x_gtx-1070-ti.xml", {"ecc": None, "pcie_width": 16, "pcie_width_max": None}),
    ],
)  # fmt: skip
def test_health_of_real_gpus(name, wanted):
    text = recorded(f"rdma/{name}").stdout
    gpu = ET.fromstring(re.sub(r"^#.*\n", "", text).lstrip()).find("gpu")  # noqa: S314 - a recorded file of ours
    gpu_health = health({field: gpu.findtext(path, "") for field, path in PATHS.items()})

    assert {key: getattr(gpu_health, key) for key in wanted} == wanted
    assert gpu_health.complaints == ()


def test_health_of_a_real_hopper_gpu():
    sections = recorded("rdma/nvidia-smi_q_535.161.08.txt").stdout.split("\nGPU 0000")[1:]
    states = {tuple(re.findall(r"^        Stat(?:e|us) +: (.*)$", text, re.MULTILINE)) for text in sections}
    gpu_health = [health({"fabric.state": state, "fabric.status": status}) for state, status in states]

    assert len(sections) == 8
    assert [(one.fabric_state, one.fabric_status) for one in gpu_health] == [("Completed", "Success")]


def test_rates_of_real_ports():
    """ibstatus prints the kernel's text of a rate: eight InfiniBand ports and one Ethernet port."""
    words = re.findall(r"rate: +(.*)", recorded("rdma/ibstatus_a100_all_active.txt").stdout)
    ports = [RdmaPort(1, "InfiniBand", "ACTIVE", "LinkUp", word) for word in words]

    assert sorted((port.gbit, port.lanes) for port in ports) == [(40.0, 4)] + [(200.0, 4)] * 8
