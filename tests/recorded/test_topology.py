"""Matrices, trees and drawings of real machines, as recorded."""

from __future__ import annotations

import pytest

from provision.errors import UsageError
from provision.report.topo_report import as_text
from provision.report.topo_svg import as_svg
from provision.topology.faults import find_faults, switched_lanes
from provision.topology.machine import MachineTopology
from provision.topology.matrix import parse
from tests.recorded import data
from tests.support.matrices import assert_matrix, mlx
from tests.support.reasons import shown
from tests.unit.topology.test_matrix import COPIES
from tests.unit.topology.test_tree import drawn


def recorded(name: str) -> str:
    """Return a recorded matrix."""
    return data.recorded(f"topo/{name}")


# File -> NUMA node of each GPU, CPUs of the first and the last GPU, cards, some links as "row column class".
WHOLE = {
    "a100_4gpu_NV4_1nic_numa_RANGE.txt": (
        [None] * 4, "0,64", "0,64", mlx(0), "GPU0 GPU1 NV4, GPU0 mlx5_0 SYS, GPU3 mlx5_0 PHB, mlx5_0 GPU3 PHB"),
    "a100pcie_1gpu_4nic_padded_by_hand.txt": (
        [1], "64-127,192-255", "64-127,192-255", mlx(0, 1, 2, 3),
        "GPU0 mlx5_0 SYS, GPU0 mlx5_2 NODE, mlx5_0 mlx5_1 PIX, mlx5_1 mlx5_2 SYS, mlx5_3 mlx5_2 PIX"),
    "a100sxm_4gpu_NV12_1nic_rocep_name.txt": (
        [1] * 4, "32-63,96-127", "32-63,96-127", ["rocep49s0"], "GPU0 GPU3 NV12, GPU2 rocep49s0 SYS"),
    "a6000_3gpu_one_NV4_bridge.txt": (
        [0] * 3, "0-31,64-95", "0-31,64-95", [], "GPU0 GPU1 NV4, GPU0 GPU2 NODE, GPU2 GPU1 NODE"),
    "ansi_underlined_header_2gpu_NV12.txt": (
        [0, 1], "0-63", "64-127", ["NIC0", "NIC1"], "GPU0 GPU1 NV12, GPU0 NIC0 PXB, NIC1 GPU1 SYS, NIC0 NIC1 PXB"),
    "aws_p3.8xlarge_4xV100.txt": (
        [None] * 4, "0-31", "0-31", [], "GPU0 GPU1 NV1, GPU0 GPU3 NV2, GPU2 GPU1 NV2"),
    "dgx1p_8xP100_RUNTOGETHER_header.txt": (
        [None] * 8, "1-1", "1-1", mlx(0, 2, 1, 3),
        "GPU0 GPU4 NV1, GPU0 GPU5 SYS, GPU0 mlx5_0 PIX, GPU0 mlx5_1 PHB, GPU7 mlx5_3 PIX, mlx5_2 mlx5_3 PHB"),
    "dgx1v_8xV100_nvlink_cubemesh_4xmlx5.txt": (
        [None] * 8, "0-19,40-59", "20-39,60-79", mlx(0, 2, 1, 3),
        "GPU0 GPU3 NV2, GPU0 GPU4 NV2, GPU6 GPU5 NV2, GPU1 GPU6 SYS, GPU2 mlx5_1 PIX, GPU4 mlx5_2 PIX"),
    "dgxa100_8xA100_12xmlx5_inline.txt": (
        [3, 3, 1, 1, 7, 7, 5, 5], "48-63,176-191", "80-95,208-223", mlx(*range(12)),
        "GPU0 GPU7 NV12, GPU0 mlx5_1 PXB, GPU4 mlx5_6 PXB, GPU4 mlx5_4 SYS, mlx5_4 mlx5_5 PIX, mlx5_11 mlx5_10 PIX"),
    "gh200_1gpu_4nic_GPU_NUMA_ID_1.txt": (
        [0], "0-71", "0-71", mlx(0, 1, 2, 3), "GPU0 mlx5_3 NODE, mlx5_0 mlx5_1 PIX, mlx5_1 mlx5_2 NODE"),
    "gke_a4_8xB200_8xmlx5_PIX_pairs.txt": (
        [0] * 4 + [1] * 4, "0-55,112-167", "56-111,168-223", mlx(*range(8)),
        "GPU0 GPU7 NV18, GPU1 mlx5_1 PIX, GPU1 mlx5_2 NODE, GPU6 mlx5_7 PIX, GPU6 mlx5_0 SYS"),
    "gpu2_NV2_numa_NA.txt": ([None] * 2, "0-23", "0-23", [], "GPU0 GPU1 NV2"),
    "gpu2_PHB_numa_NA.txt": ([None] * 2, "0-11", "0-11", [], "GPU1 GPU0 PHB"),
    "gpu4_PHB_SOC_1xmlx4_oldlegend.txt": (
        [None] * 4, "0-5", "6-11", ["mlx4_0"], "GPU0 GPU1 PHB, GPU0 GPU2 SYS, GPU1 mlx4_0 SYS, mlx4_0 GPU3 PHB"),
    "h100_8gpu_nonic_ht_affinity.txt": (
        [0] * 4 + [1] * 4, "0-51,104-155", "52-103,156-207", [], "GPU0 GPU7 NV18"),
    "h100_dell_8gpu_6nic_EMPTY_cpu_affinity.txt": (
        [0] * 4 + [1] * 4, "", "1", mlx(*range(6)),
        "GPU0 mlx5_1 PIX, GPU1 mlx5_1 NODE, GPU3 mlx5_2 PIX, GPU6 mlx5_5 PIX, GPU7 mlx5_5 NODE, mlx5_3 mlx5_4 PIX"),
    "h20_8gpu_NV18_8nic_PIX_NODE_rail.txt": (
        [0] * 4 + [1] * 4, "0-47,96-143", "48-95,144-191", mlx(*range(1, 9)),
        "GPU0 mlx5_1 PIX, GPU0 mlx5_2 NODE, GPU0 mlx5_5 SYS, GPU7 mlx5_8 PIX"),
    "h800_container_4of8gpu_17nic_no_affinity.txt": (
        [None] * 4, "", "", mlx(*range(17)),
        "GPU0 GPU3 NV8, GPU0 mlx5_4 PIX, GPU0 mlx5_13 PIX, GPU3 mlx5_16 PIX, GPU3 mlx5_15 SYS, mlx5_0 mlx5_9 PIX"),
    "hgx_8gpu_NV18_12nic_numa_off_node7.txt": (
        [0] * 8, "0-191", "0-191", mlx(*range(12)),
        "GPU3 mlx5_5 PIX, GPU3 mlx5_3 NODE, GPU7 mlx5_11 PIX, mlx5_9 mlx5_10 PIX"),
    "k80_4gpu_PIX_PHB_1xmlx4_oldest_legend.txt": (
        [None] * 4, "0-11", "0-11", ["mlx4_0"], "GPU0 GPU1 PIX, GPU1 GPU2 PHB, mlx4_0 GPU0 PHB"),
    "k80_4gpu_PIX_SOC_1xmlx5_oldlegend.txt": (
        [None] * 4, "0-7", "8-15", mlx(0), "GPU0 GPU1 PIX, GPU0 GPU3 SYS, GPU3 mlx5_0 PHB, mlx5_0 GPU1 SYS"),
    "k80_4gpu_all_NODE_nonic.txt": ([None] * 4, "0-11", "0-11", [], "GPU0 GPU3 NODE"),
    "l40s_vm_4gpu_PHB_SYS_nonic.txt": (
        [0, 0, 1, 1], "0-63", "64-127", [], "GPU0 GPU1 PHB, GPU1 GPU2 SYS, GPU3 GPU2 PHB"),
    "pcie_8gpu_NODE_SYS_nonic.txt": (
        [0] * 4 + [1] * 4, "0-31,64-95", "32-63,96-123", [], "GPU0 GPU3 NODE, GPU3 GPU4 SYS"),
    "rtx5090_2gpu_PHB.txt": ([0, 0], "0-63", "0-63", [], "GPU0 GPU1 PHB"),
    "v100_8gpu_nvlink_1xmlx5_NODE_PIX.txt": (
        [None] * 8, "0-11,24-35", "12-23,36-47", mlx(0), "GPU1 mlx5_0 NODE, GPU3 mlx5_0 PIX, GPU4 GPU7 NV2"),
    "v100_8gpu_nvlink_2xmlx5_realigned_extra_tabs.txt": (
        [0] * 4 + [1] * 4, "0-23,48-71", "24-47,72-95", mlx(0, 1),
        "GPU0 GPU2 NV2, GPU0 GPU7 NV2, GPU2 mlx5_0 PIX, GPU5 mlx5_1 NODE, mlx5_1 GPU6 PIX"),
}  # fmt: skip
WARNED = {
    "a100_4gpu_NV4_1nic_numa_RANGE.txt": "topology.numa_invalid: 0-3",
    "ansi_underlined_header_2gpu_NV12.txt": "topology.cards_unnamed: NIC0 NIC1",
    "dgx1p_8xP100_RUNTOGETHER_header.txt": "topology.heading_not_separated",
}
REFUSED = {
    "PARTIAL_dgx2_16gpu_NV6_first_4_rows.txt": "more devices than it has rows; the last row is GPU3",
    "PARTIAL_dgx2_topo_mp_elided.txt": "columns were removed",
    "dgx1_topo_mp_pcie_only.txt": "topo -mp",
    "rtx5090_2gpu_topo_p2p_rw_GNS.txt": "'GNS' between GPU0 and GPU1",
}


TREES = {
    "dgx1v_8xV100_nvlink_cubemesh_4xmlx5.txt": [
        "0-19,40-59: PHB(PIX(GPU0 GPU1 mlx5_0) PIX(GPU2 GPU3 mlx5_1))",
        "20-39,60-79: PHB(PIX(GPU4 GPU5 mlx5_2) PIX(GPU6 GPU7 mlx5_3))",
    ],
    "dgxa100_8xA100_12xmlx5_inline.txt": [
        "3: PXB(GPU0 GPU1 mlx5_0 mlx5_1)",
        "1: PXB(GPU2 GPU3 mlx5_2 mlx5_3)",
        "7: PXB(GPU4 GPU5 mlx5_6 mlx5_7)",
        "5: PXB(GPU6 GPU7 mlx5_8 mlx5_9)",
        "?: PIX(mlx5_4 mlx5_5) PIX(mlx5_10 mlx5_11)",
    ],
    "dgx1p_8xP100_RUNTOGETHER_header.txt": [
        "1-1: PHB(PIX(GPU0 GPU1 mlx5_0) PIX(GPU2 GPU3 mlx5_1))",
        "1-1: PHB(PIX(GPU4 GPU5 mlx5_2) PIX(GPU6 GPU7 mlx5_3))",
    ],
    "k80_4gpu_PIX_SOC_1xmlx5_oldlegend.txt": ["0-7: PIX(GPU0 GPU1)", "8-15: PHB(mlx5_0 PIX(GPU2 GPU3))"],
    "k80_4gpu_all_NODE_nonic.txt": ["0-11: GPU0 GPU1 GPU2 GPU3"],
    "a100pcie_1gpu_4nic_padded_by_hand.txt": ["1: GPU0 PIX(mlx5_2 mlx5_3)", "?: PIX(mlx5_0 mlx5_1)"],
    "h100_8gpu_nonic_ht_affinity.txt": ["0: GPU0 GPU1 GPU2 GPU3", "1: GPU4 GPU5 GPU6 GPU7"],
    "h100_dell_8gpu_6nic_EMPTY_cpu_affinity.txt": [
        "0: GPU1 GPU2 PIX(GPU0 mlx5_0 mlx5_1) PIX(GPU3 mlx5_2)",
        "1: GPU5 GPU7 PIX(GPU4 mlx5_3 mlx5_4) PIX(GPU6 mlx5_5)",
    ],
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_recorded_matrix_is_parsed_unchanged(name):
    """GPUs, cards, NUMA nodes, CPUs and links of machines of all ages."""
    topology = parse(recorded(name))
    assert_matrix(topology, *WHOLE[name])
    assert [*map(shown, topology.warnings)] == ([WARNED[name]] if name in WARNED else [])


@pytest.mark.parametrize(("name", "said"), REFUSED.items())
def test_an_incomplete_matrix_is_refused(name, said):
    """The message names the damage or the other table, and the remedy names the right input."""
    with pytest.raises(UsageError) as refused:
        parse(recorded(name))

    assert said in refused.value.message
    assert "nvidia-smi topo -m" in str(refused.value.remedy)


def test_every_sample_is_tested():
    """Every recorded file is either read or refused here."""
    assert {file.name for file in data.path("data/topo").iterdir()} == {*WHOLE, *REFUSED}


@pytest.mark.parametrize("name", TREES)
def test_the_tree_of_a_real_machine_matches_its_hardware(name):
    """A card shows that two GPUs share a switch, even if NVLink hides their class."""
    assert drawn(parse(recorded(name))) == TREES[name]


@pytest.mark.parametrize("name", WHOLE)
def test_recorded_machines_have_no_faults_and_can_be_shown(name):
    """Bridges, cube meshes, a container's share of GPUs, storage cards."""
    shown = MachineTopology(parse(recorded(name)))

    assert find_faults(shown.topology) == ()
    assert max(map(len, as_text(shown).splitlines())) <= 80
    assert as_svg(shown)


@pytest.mark.parametrize(
    ("name", "lanes"),
    [
        ("h20_8gpu_NV18_8nic_PIX_NODE_rail.txt", 18),
        ("dgxa100_8xA100_12xmlx5_inline.txt", 12),
        ("h800_container_4of8gpu_17nic_no_affinity.txt", 8),
        ("dgx1v_8xV100_nvlink_cubemesh_4xmlx5.txt", 0),
        ("a100_4gpu_NV4_1nic_numa_RANGE.txt", 0),
        ("gpu2_NV2_numa_NA.txt", 0),
        ("rtx5090_2gpu_PHB.txt", 0),
    ],
)
def test_switches_are_recognised_by_more_lanes_than_a_gpu_has(name, lanes):
    """A row that shows more lanes than any GPU has counts those to the switches once for each peer."""
    assert switched_lanes(parse(recorded(name))) == lanes


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize(
    "name", ["dgx1v_8xV100_nvlink_cubemesh_4xmlx5.txt", "h20_8gpu_NV18_8nic_PIX_NODE_rail.txt", "rtx5090_2gpu_PHB.txt"]
)
def test_changes_by_copying_do_not_matter(name, copy):
    """Terminals, mails and pages change line ends, tabs and blanks."""
    text = recorded(name).split("\n", 1)[1]

    assert parse(COPIES[copy](text)) == parse(text)


@pytest.mark.parametrize(
    "name",
    ["h100_dell_8gpu_6nic_EMPTY_cpu_affinity.txt", "h800_container_4of8gpu_17nic_no_affinity.txt",
     "aws_p3.8xlarge_4xV100.txt"],
)  # fmt: skip
def test_an_empty_affinity_stays_empty_where_tabs_are_expanded(name):
    """The NUMA node is never parsed as a CPU."""
    text = recorded(name)

    assert parse(text.expandtabs(8)) == parse(text)
