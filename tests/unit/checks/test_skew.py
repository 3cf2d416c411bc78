"""Nodes that differ: the odd ones first, and a tie said as one."""

from __future__ import annotations

import dataclasses

import pytest

from provision.checks import judge_cluster
from provision.checks.skew import odd_ones
from provision.facts.rdma import RdmaStack
from provision.facts.system import System
from provision.model import CheckStatus
from provision.report.reasons import remedy
from tests.support.reasons import shown
from tests.unit.checks.conftest import gpu, healthy, make_cluster, rdma_device


def test_the_deviating_node_comes_first():
    """What most nodes have comes last, with their number."""
    values = {f"gpu{n}": "535.161" for n in range(1, 9)} | {"gpu3": "550.54"}

    assert shown(odd_ones("driver", values)) == "cluster.skew.odd: driver cluster.skew.value 550.54 gpu3 535.161 7"


def test_all_deviating_values_are_reported():
    """The rarest is first."""
    values = {"a": "1", "b": "1", "c": "1", "d": "2", "e": "2", "f": "3"}

    assert (
        shown(odd_ones("kernel", values))
        == "cluster.skew.odd: kernel cluster.skew.value 3 f cluster.skew.value 2 d e 1 3"
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"a": "1", "b": "2"}, "cluster.skew.no_majority: driver cluster.skew.value 1 a cluster.skew.value 2 b"),
        (
            {"a": "1", "b": "1", "c": "2", "d": "2", "e": "3"},
            "cluster.skew.no_majority: driver cluster.skew.value 3 e cluster.skew.value 1 a b cluster.skew.value 2 c d",
        ),
    ],
)
def test_a_tie_reports_no_node_as_deviating(values, said):
    """With two nodes, or two halves, the right value is unknown."""
    assert shown(odd_ones("driver", values)) == said


def test_many_deviating_nodes_are_counted():
    """A line stays a line on a large cluster."""
    values = {f"n{number:02}": "old" if number < 10 else "new" for number in range(64)}

    assert shown(odd_ones("kernel", values)) == (
        "cluster.skew.odd: kernel cluster.skew.value old n00 n01 n02 n03 n04 n05 n06 n07 n08 n09 new 54"
    )


def test_equal_nodes_do_not_deviate():
    """One value, however many nodes."""
    assert odd_ones("driver", {"a": "1", "b": "1"}) is None


def judged(**changes):
    """Judge three nodes, of which the third has some facts of its own; returns the results by id."""
    cluster = make_cluster()
    facts = {"gpu1": healthy(1), "gpu2": healthy(2), "gpu3": dataclasses.replace(healthy(2), **changes)}
    return {result.id: result for result in judge_cluster(cluster, cluster.nodes, facts)}


def card(**values):
    return RdmaStack((dataclasses.replace(rdma_device(), **values),), 1, (), "")


ODD = [
    ("cluster.skew_driver", "odd driver cluster.skew.value 535.161 gpu3 550.90 2",
     {"gpus": (dataclasses.replace(gpu(), driver="535.161"),)}),
    ("cluster.skew_vbios", "odd VBIOS of NVIDIA A100-SXM4-80GB cluster.skew.value 92.00.36.00.02 gpu3 92.00.45.00.03 2",
     {"gpus": (dataclasses.replace(gpu(), vbios="92.00.36.00.02"),)}),
    ("cluster.skew_gpus", "odd GPUs cluster.skew.value 2 x NVIDIA A100-SXM4-80GB gpu3 1 x NVIDIA A100-SXM4-80GB 2",
     {"gpus": (gpu(0), gpu(1))}),
    ("cluster.skew_firmware",
     "odd firmware of network card MT_0000000223 cluster.skew.value 20.36.1010 gpu3 20.38.1002 2",
     {"rdma": card(firmware="20.36.1010")}),
    ("cluster.skew_rdma_stack", "odd RDMA stack cluster.skew.value MLNX_OFED_LINUX-5.8 gpu3 rdma-core 44 2",
     {"rdma": dataclasses.replace(card(), ofed="MLNX_OFED_LINUX-5.8")}),
    ("cluster.skew_port_rate", "odd active RDMA ports cluster.skew.value none gpu3 1 x 100 Gbit/s Ethernet 2",
     {"rdma": RdmaStack((rdma_device(state="DOWN"),), 1, (), "")}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "said", "changes"), ODD, ids=[name for name, _, _ in ODD])
def test_a_difference_is_a_warning_with_a_remedy(name, said, changes):
    """Driver, VBIOS, GPUs, firmware, RDMA stack and ports."""
    result = judged(**changes)[name]

    assert (result.status, shown(result.reason)) == (CheckStatus.WARN, f"{name}.differ: cluster.skew.{said}")
    assert remedy(result.reason, "gpu1")


@pytest.mark.parametrize("name", [name for name, _, _ in ODD])
def test_equal_nodes_pass(name):
    """And the reason says what they have."""
    assert judged()[name].status is CheckStatus.PASS


def test_different_products_are_not_compared():
    """Firmware and VBIOS are compared where the product is the same."""
    changes = {"rdma": card(board="MT_0000000838", firmware="28.39"), "gpus": (gpu(name="NVIDIA L4"),)}
    results = judged(**changes)

    assert results["cluster.skew_firmware"].status is CheckStatus.PASS
    assert results["cluster.skew_vbios"].status is CheckStatus.PASS


def test_different_firmware_on_cards_of_one_node_is_reported():
    """A card that was replaced and never updated is found among its own."""
    mixed = RdmaStack((rdma_device(), dataclasses.replace(rdma_device("mlx5_1"), firmware="20.36.1010")), 2, (), "")

    assert "20.36.1010 and 20.38.1002 gpu3" in shown(judged(rdma=mixed)["cluster.skew_firmware"].reason)


def test_a_simulated_system_says_so_where_systems_differ():
    """Its nodes have the files of another system."""
    ubuntu = System("ubuntu", "24.04", "Ubuntu 24.04 LTS", "6.1", "x86_64")
    result = judged(system=ubuntu, simulated={"system": "Ubuntu"})["cluster.skew_os"]

    assert (result.status, result.simulated) == (CheckStatus.WARN, True)
    assert "ubuntu 24.04 (SIMULATED) gpu3" in shown(result.reason)
    assert not judged(system=ubuntu)["cluster.skew_os"].simulated


def test_nodes_without_gpus_do_not_deviate():
    """A login or storage node has no driver to differ in."""
    results = judged(gpus=(), gpu_pci=())

    assert results["cluster.skew_driver"].status is CheckStatus.PASS
    assert results["cluster.skew_gpus"].status is CheckStatus.PASS


def test_a_single_node_is_not_compared():
    """It is skipped with the reason."""
    cluster = make_cluster()
    results = {result.id: result for result in judge_cluster(cluster, cluster.nodes, {"gpu1": healthy()})}

    assert {results[name].status for name, _, _ in ODD} == {CheckStatus.SKIP}


def test_skew_of_simulated_components_is_marked():
    """Drivers and GPUs of a lab are SIMULATED, cards are not."""
    results = judged(simulated={"nvidia-smi": "GPUs"})

    assert {name for name, _, _ in ODD if results[name].simulated} == {
        "cluster.skew_driver",
        "cluster.skew_vbios",
        "cluster.skew_gpus",
    }
