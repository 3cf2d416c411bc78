"""The parsers on outputs recorded on real machines, which are not part of this repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.facts import RawOutput
from provision.facts.distance import GpuNicsFact
from provision.facts.gpu import GpusFact
from provision.facts.kernel import ModulesFact
from provision.facts.peer_modules import PeerMemoryFact

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "rdma"
MATRICES = DATA.parent / "topo"


def recorded(name: str, folder: Path = DATA) -> RawOutput:
    file = folder / name
    if not file.exists():
        pytest.skip(f"the recorded output {name} is not on this machine")
    return RawOutput(file.read_text(encoding="utf-8"), 0)


@pytest.mark.parametrize(
    ("name", "count", "product", "driver", "memory"),
    [
        ("nvidia-smi_query_csv_4xA100.txt", 4, "NVIDIA A100-SXM4-80GB", "580.105.08", 81920),
        ("nvidia-smi_query_csv_8xH200.txt", 8, "NVIDIA H200", "570.211.01", 143771),
        ("nvidia-smi_query_csv_rtx5080_vm_uuid_busid.txt", 1, "NVIDIA GeForce RTX 5080", "580.159.03", 16303),
    ],
)
def test_gpus_of_real_machines(name, count, product, driver, memory):
    """Columns are found by their titles, in whatever order and with their units."""
    gpus = GpusFact().parse(recorded(name))

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
    """The list of lsmod is understood like that of the kernel."""
    modules = ModulesFact().parse(recorded(name))

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
    """A module counts when the RDMA stack shows it as a user; loaded alone says nothing."""
    peers = PeerMemoryFact().parse(recorded(name))

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
    """The column is read where it was asked for, and empty where it was not."""
    assert {gpu.compute_capability for gpu in GpusFact().parse(recorded(name))} == {capability}


@pytest.mark.parametrize(
    ("name", "gpu", "near"),
    [
        ("h20_8gpu_NV18_8nic_PIX_NODE_rail.txt", "GPU0", {"mlx5_1": "PIX"}),
        ("h800_container_4of8gpu_17nic_no_affinity.txt", "GPU3", {"mlx5_8": "PIX", "mlx5_16": "PIX"}),
        ("dgx1p_8xP100_RUNTOGETHER_header.txt", "GPU2", {"mlx5_1": "PIX"}),
        ("dgxa100_8xA100_12xmlx5_inline.txt", "GPU4", {"mlx5_6": "PXB", "mlx5_7": "PXB"}),
        ("ansi_underlined_header_2gpu_NV12.txt", "GPU0", {"NIC0": "PXB", "NIC1": "PXB"}),
        ("k80_4gpu_PIX_SOC_1xmlx5_oldlegend.txt", "GPU0", {}),
        ("a100pcie_1gpu_4nic_padded_by_hand.txt", "GPU0", {}),
    ],
)
def test_cards_near_a_gpu_on_real_machines(name, gpu, near):
    """Old and new headings, legends or none, tabs or blanks: cards behind the same switches are found."""
    found = GpuNicsFact().parse(recorded(name, MATRICES))
    numbered = {card: kind for card, kind in found[gpu].items() if kind in {"PIX", "PXB"}}

    assert numbered == near


def test_the_old_name_of_the_farthest_class_is_not_handed_on():
    """SOC of old drivers is SYS of current ones."""
    found = GpuNicsFact().parse(recorded("k80_4gpu_PIX_SOC_1xmlx5_oldlegend.txt", MATRICES))

    assert {gpu: cards["mlx5_0"] for gpu, cards in found.items()} == {
        "GPU0": "SYS",
        "GPU1": "SYS",
        "GPU2": "PHB",
        "GPU3": "PHB",
    }
