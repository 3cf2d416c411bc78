"""Described machines: each file loads, agrees with recorded matrices, and wrong descriptions are refused."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from provision.errors import LabError
from provision.lab.machines import connection, load, names, parse, to_json

SAMPLES = Path(__file__).parents[4] / "shared/data/topo"
PAIR = """
name: two
description: two cards
driver_version: 535.183.06
cuda_version: "12.2"
gpu: {model: A, architecture: B, compute_capability: "8.6", memory_mib: 10, power_limit_watts: 5, pcie_generation: 4}
numa: {0: 0-15, 1: 16-31}
gpus:
  - {bus: "3b:00.0", at: 0/0/a/x}
  - {bus: "5e:00.0", at: 0/0/a/y}
nics:
  - {name: mlx5_0, bus: "01:00.0", at: 0/0/a/y, rate_gbps: 100, link: InfiniBand}
  - {name: mlx5_1, bus: "02:00.0", at: 0/0/b, rate_gbps: 100, link: InfiniBand}
  - {name: mlx5_2, bus: "03:00.0", at: 0/1, rate_gbps: 100, link: InfiniBand}
  - {name: mlx5_3, bus: "04:00.0", at: 1/0, rate_gbps: 100, link: InfiniBand}
"""


def recorded(name: str) -> list[list[str]]:
    """The matrix of a recorded `nvidia-smi topo -m`, without affinity columns."""
    path = SAMPLES / name
    if not path.exists():
        pytest.skip(f"{name} is not beside this checkout")
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    count = sum(title.startswith(("GPU", "NIC", "mlx")) and "ID" not in title for title in lines[0].split("\t"))
    return [[cell.strip() for cell in line.split("\t")[1 : count + 1]] for line in lines[1 : count + 1]]


def matrix(name: str) -> list[list[str]]:
    return json.loads(to_json(load(name)))["matrix"]


@pytest.mark.parametrize("name", names())
def test_every_machine_loads_and_is_named_as_its_file(name):
    """Whatever `--machine` lists can be loaded, and has a symmetric matrix."""
    document = json.loads(to_json(load(name)))

    assert document["name"] == name
    assert all(
        document["matrix"][a][b] == document["matrix"][b][a] for a, b in combinations(range(len(document["matrix"])), 2)
    )


@pytest.mark.parametrize(
    ("machine", "sample"),
    [
        ("dgx1v", "dgx1v_8xV100_nvlink_cubemesh_4xmlx5.txt"),
        ("dgxa100", "dgxa100_8xA100_12xmlx5_inline.txt"),
        ("hgxh100", "h20_8gpu_NV18_8nic_PIX_NODE_rail.txt"),
    ],
)
def test_the_matrix_is_that_of_a_real_machine(machine, sample):
    """Every link class of a described machine is what the real one printed."""
    assert matrix(machine) == recorded(sample)


@pytest.mark.parametrize(
    ("machine", "sample"),
    [
        ("pcie8", "pcie_8gpu_NODE_SYS_nonic.txt"),
        ("pcie4", "l40s_vm_4gpu_PHB_SYS_nonic.txt"),
        ("pair", "rtx5090_2gpu_PHB.txt"),
    ],
)
def test_the_gpus_of_pcie_machines_are_linked_as_recorded(machine, sample):
    """The PCIe machines agree with recorded ones, which had no RDMA cards."""
    real = recorded(sample)

    assert [row[: len(real)] for row in matrix(machine)[: len(real)]] == real


def test_link_classes_follow_from_the_place_in_the_pcie_tree():
    """The field `at` determines PIX, PXB, PHB, NODE and SYS."""
    machine = parse(PAIR, source="two.yml")

    assert [connection(machine, 1, other) for other in range(6)] == ["PXB", "X", "PIX", "PHB", "NODE", "SYS"]


def test_the_cube_mesh_gives_each_v100_its_six_links():
    """A DGX-1 GPU has six NVLinks, whichever it is."""
    assert {gpu["nvlinks"] for gpu in json.loads(to_json(load("dgx1v")))["gpus"]} == {6}


def test_an_unknown_machine_is_refused_with_the_known_names():
    """A misspelt machine name brings the list of names."""
    with pytest.raises(LabError) as caught:
        load("dgx9")

    assert "dgx9" in caught.value.message
    assert all(name in str(caught.value.remedy) for name in names())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("memory_mib: 10", 'memory_mib: "10"', "memory_mib"),
        ("memory_mib: 10", "memory_mb: 10", "memory_mb"),
        ('"5e:00.0"', '"3b:00.0"', "the same bus address"),
        ('"5e:00.0"', "5e", "bus"),
        ("at: 1/0", "at: 7/0", "7/0"),
        ("name: two", "name: two\nnvlink: {direct: [[0, 5, 1]]}", "does not exist"),
        ("name: two", "name: two\nnvlink: {direkt: []}", "direkt"),
        ("name: two", "name: two\nextra: 1", "extra"),
        ("name: two", "name: [two", "two.yml"),
    ],
)
def test_a_wrong_description_is_refused_by_file_and_key(old, new, said):
    """A mistake in a machine's file is named, never worked around."""
    assert old in PAIR

    with pytest.raises(LabError) as caught:
        parse(PAIR.replace(old, new, 1), source="two.yml")

    assert "two.yml" in caught.value.message
    assert said in caught.value.message
