"""The tree of NUMA nodes and PCIe groups that follows from the classes."""

from __future__ import annotations

import json

import pytest

from provision.lab.machines import Machine, load, names, parse, to_json
from provision.model import Topology, TopologyGpu, TopologyNic
from provision.topology.matrix import parse as parse_matrix
from provision.topology.tree import Group, NumaNode, tree
from tests.support.matrices import LAYOUTS

GROUPED = {"PIX", "PXB", "PHB"}


def of(machine: Machine) -> Topology:
    """The topology that a described machine has."""
    document = json.loads(to_json(machine))
    return Topology(
        tuple(TopologyGpu(n, gpu["numa"], tuple(gpu["cpus"].split(","))) for n, gpu in enumerate(document["gpus"])),
        tuple(TopologyNic(nic["name"]) for nic in document["nics"]),
        tuple(map(tuple, document["matrix"])),
    )


def drawn(topology: Topology) -> list[str]:
    """Each NUMA node as text: ``0: GPU1 PHB(PIX(GPU0 mlx5_0))``."""
    names = [*(f"GPU{gpu.index}" for gpu in topology.gpus), *(nic.name for nic in topology.nics)]

    def inside(part: NumaNode | Group) -> str:
        groups = [f"{group.kind}({inside(group)})" for group in part.groups]
        return " ".join([*(names[row] for row in part.devices), *groups])

    def title(numa_node: NumaNode) -> str:
        return str(numa_node.numa) if numa_node.numa is not None else ",".join(numa_node.cpus) or "?"

    return [f"{title(numa_node)}: {inside(numa_node)}" for numa_node in tree(topology)]


TREES = {
    "cards by device name": [
        "0-19,40-59: PHB(PIX(GPU0 GPU1 mlx5_0) PIX(GPU2 GPU3 mlx5_1))",
        "20-39,60-79: PHB(PIX(GPU4 GPU5 mlx5_2) PIX(GPU6 GPU7 mlx5_3))",
    ],
    "column for the NUMA node": [
        "3: PXB(GPU0 GPU1 mlx5_0 mlx5_1)",
        "1: PXB(GPU2 GPU3 mlx5_2 mlx5_3)",
        "7: PXB(GPU4 GPU5 mlx5_6 mlx5_7)",
        "5: PXB(GPU6 GPU7 mlx5_8 mlx5_9)",
        "?: PIX(mlx5_4 mlx5_5) PIX(mlx5_10 mlx5_11)",
    ],
    "SOC instead of SYS": ["0-7: PIX(GPU0 GPU1)", "8-15: PHB(mlx5_0 PIX(GPU2 GPU3))"],
    "one bridge": ["0: GPU0 GPU1 GPU2"],
    "padded by hand": ["1: GPU0 PIX(mlx5_2 mlx5_3)", "?: PIX(mlx5_0 mlx5_1)"],
    "no CPUs on one socket": [
        "0: GPU1 GPU2 PIX(GPU0 mlx5_0 mlx5_1) PIX(GPU3 mlx5_2)",
        "1: GPU5 GPU7 PIX(GPU4 mlx5_3 mlx5_4) PIX(GPU6 mlx5_5)",
    ],
}


@pytest.mark.parametrize("name", TREES)
def test_the_tree_follows_from_the_matrix(name):
    """A card shows that two GPUs share a switch, even if NVLink hides their class."""
    assert drawn(parse_matrix(LAYOUTS[name])) == TREES[name]


@pytest.mark.parametrize("name", names())
def test_the_tree_of_a_described_machine_matches_its_description(name):
    """Every device occurs once, with its NUMA node; devices of one host bridge are in one group."""
    machine = load(name)
    devices = [*machine.gpus, *machine.nics]
    numa_nodes = tree(of(machine))

    assert sorted(row for numa_node in numa_nodes for row in numa_node.members()) == list(range(len(devices)))
    for numa_node in numa_nodes:
        for row in numa_node.members():
            assert numa_node.numa in (None, int(devices[row].at[0]))
        for group in numa_node.groups:
            assert len({devices[row].at[:2] for row in group.members()}) == 1
            assert group.kind in GROUPED


def test_nested_classes_form_nested_groups():
    """One switch below several below a host bridge; devices without a group are next to the groups."""
    text = """
name: deep
description: all levels
driver_version: 535.183.06
cuda_version: "12.2"
gpu: {model: A, architecture: B, compute_capability: "8.6", memory_mib: 10, power_limit_watts: 5, pcie_generation: 4}
numa: {0: 0-15, 1: 16-31}
gpus:
  - {bus: "3b:00.0", at: 0/0/a/x}
  - {bus: "5e:00.0", at: 0/0/a/y}
  - {bus: "5f:00.0", at: 0/0/b}
  - {bus: "60:00.0", at: 0/1}
nics:
  - {name: mlx5_0, bus: "01:00.0", at: 0/0/a/y, rate_gbps: 100, link: InfiniBand}
  - {name: mlx5_1, bus: "04:00.0", at: 1/0, rate_gbps: 100, link: InfiniBand}
"""

    assert drawn(of(parse(text, source="deep.yml"))) == ["0: GPU3 PHB(GPU2 PXB(GPU0 PIX(GPU1 mlx5_0)))", "?: mlx5_1"]
