"""The parsers of facts on outputs of the lab's simulated nvidia-smi, and on lists of modules."""

from __future__ import annotations

import pytest

from provision.facts import RawOutput
from provision.facts.gpu import GpusFact
from provision.facts.gpu_health import health
from provision.facts.kernel import ModulesFact
from provision.facts.nvlink import Links, NvLinksFact
from provision.facts.peer_modules import PeerMemoryFact
from provision.facts.rdma import RdmaPort
from provision.facts.topology import TopologyFact
from provision.topology.links import card_links
from tests.support.matrices import LAYOUTS
from tests.support.nvidia_smi import run


@pytest.mark.parametrize(
    "fields",
    [
        "index,name,memory.total,driver_version,compute_cap,pci.bus_id,uuid",
        "index,uuid,driver_version,memory.total,pci.bus_id,vbios_version,name",
    ],
)
def test_columns_of_gpus_are_identified_by_their_titles(fields):
    """In any order after the index, and with units; a column that is missing is empty."""
    gpus = GpusFact().parse(RawOutput(run("hgxh100", f"--query-gpu={fields}", "--format=csv").stdout, 0))

    assert [gpu.index for gpu in gpus] == list(range(8))
    assert {(gpu.name, gpu.driver, gpu.memory_mib) for gpu in gpus} == {("NVIDIA H100 80GB HBM3", "550.90.07", 81559)}
    assert {gpu.compute_capability for gpu in gpus} == {"9.0" if "compute_cap" in fields else ""}
    assert {gpu.vbios for gpu in gpus} == {"96.00.74.00.0D" if "vbios" in fields else ""}


def test_links_of_each_gpu_are_counted():
    assert NvLinksFact().parse(RawOutput(run("dgxa100", "nvlink", "-s").stdout, 0)) == {
        gpu: Links(12) for gpu in range(8)
    }


@pytest.mark.parametrize(
    ("layout", "gpu", "near"),
    [
        ("cards by number", 0, {"mlx5_0": "PIX"}),
        ("no affinity", 3, {"mlx5_4": "PIX", "mlx5_11": "PIX"}),
        ("heading run together", 2, {"mlx5_1": "PIX"}),
        ("column for the NUMA node", 4, {"mlx5_6": "PXB", "mlx5_7": "PXB"}),
        ("underlined heading without legend", 0, {"NIC0": "PXB", "NIC1": "PXB"}),
        ("SOC instead of SYS", 0, {}),
        ("padded by hand", 0, {}),
    ],
)
def test_cards_near_a_gpu_are_read_from_any_layout(layout, gpu, near):
    """Old and new headings, with and without legends, tabs and spaces."""
    links = card_links(TopologyFact().parse(RawOutput(LAYOUTS[layout], 0)))

    assert {card: kind for card, kind in links[gpu].items() if kind in {"PIX", "PXB"}} == near


def test_the_old_name_of_the_farthest_class_is_replaced():
    """SOC of old drivers is SYS of current ones."""
    links = card_links(TopologyFact().parse(RawOutput(LAYOUTS["SOC instead of SYS"], 0)))

    assert {gpu: cards["mlx5_0"] for gpu, cards in links.items()} == {0: "SYS", 1: "SYS", 2: "PHB", 3: "PHB"}


@pytest.mark.parametrize(
    ("rows", "module", "bound"),
    [
        (["nvidia_peermem  16384  0", "ib_core  434176  2 nvidia_peermem,ib_uverbs"], "nvidia_peermem", True),
        (["nvidia_peermem  16384  0", "ib_uverbs  163840  1 nvidia_peermem"], "nvidia_peermem", True),
        (["nvidia_peermem  16384  0", "ib_core  434176  1 ib_uverbs"], "nvidia_peermem", False),
        (["nv_peer_mem  16384  0", "ib_core  434176  2 nv_peer_mem,ib_cm"], "nv_peer_mem", True),
    ],
    ids=["used by ib_core", "used by ib_uverbs alone", "loaded and unused", "nv_peer_mem"],
)
def test_peer_memory_modules_are_read_from_lsmod(rows, module, bound):
    """A module counts as bound only if the RDMA stack lists it as a user; the heading is not a module."""
    raw = RawOutput("\n".join(["Module  Size  Used by", *rows, ""]), 0)
    peers = PeerMemoryFact().parse(raw)

    assert module in ModulesFact().parse(raw)
    assert "Module" not in ModulesFact().parse(raw)
    assert set(peers.loaded) == {module}
    assert (module in peers.bound) is bound


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"ecc.mode.current": "Enabled", "pcie.link.width.current": "16"}, {"ecc": True, "pcie_width": 16}),
        ({"ecc.mode.current": "N/A", "remapped_rows.pending": "N/A"}, {"ecc": None, "rows_pending": None}),
        ({"mig.mode.current": "Enabled", "remapped_rows.failure": "No"}, {"mig": True, "rows_failure": False}),
        ({"fabric.state": "Completed", "fabric.status": "Success"}, {"fabric_state": "Completed"}),
        (
            {"pcie.link.gen.current": "1", "pcie.link.gen.max": "4", "pcie.link.width.max": "N/A"},
            {"pcie_generation": 1, "pcie_generation_max": 4, "pcie_width_max": None},
        ),
    ],
)
def test_health_is_read_from_the_words_of_nvidia_smi(values, expected):
    gpu_health = health(values)

    assert {key: getattr(gpu_health, key) for key in expected} == expected
    assert gpu_health.complaints == ()


def test_rates_of_ports_have_gigabits_and_lanes():
    """The kernel's text of a rate."""
    ports = [
        RdmaPort(1, "InfiniBand", "ACTIVE", "LinkUp", text) for text in ("200 Gb/sec (4X HDR)", "40 Gb/sec (4X QDR)")
    ]

    assert [(port.gbit, port.lanes) for port in ports] == [(200.0, 4), (40.0, 4)]
