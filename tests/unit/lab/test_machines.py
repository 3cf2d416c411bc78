"""Described machines: each file loads and gives its matrix, and wrong descriptions are refused."""

from __future__ import annotations

import json
from itertools import combinations

import pytest

from provision.errors import LabError
from provision.lab.machines import connection, load, names, parse, to_json

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


def matrix(name: str) -> list[list[str]]:
    return json.loads(to_json(load(name)))["matrix"]


@pytest.mark.parametrize("name", names())
def test_every_machine_loads_and_has_the_name_of_its_file(name):
    """Whatever `--machine` lists can be loaded, and has a symmetric matrix."""
    document = json.loads(to_json(load(name)))

    assert document["name"] == name
    assert all(
        document["matrix"][a][b] == document["matrix"][b][a] for a, b in combinations(range(len(document["matrix"])), 2)
    )


MATRICES = {
    "pair": ["X PHB", "PHB X"],
    "pcie4": ["X PHB SYS SYS", "PHB X SYS SYS", "SYS SYS X PHB", "SYS SYS PHB X"],
    "dgx1v": ["X NV1 NV1 NV2 NV2 SYS SYS SYS", "NV1 X NV2 NV1 SYS NV2 SYS SYS"],
    "dgxa100": ["X NV12 NV12 NV12 NV12 NV12 NV12 NV12 PXB PXB SYS SYS"],
    "hgxh100": ["X NV18 NV18 NV18 NV18 NV18 NV18 NV18 PIX NODE NODE NODE SYS SYS SYS SYS"],
}


@pytest.mark.parametrize("name", MATRICES)
def test_the_matrix_follows_from_links_and_positions(name):
    """NVLink between the GPUs that have it, and the PCIe class of the others."""
    expected = [row.split() for row in MATRICES[name]]

    assert [row[: len(wanted)] for row, wanted in zip(matrix(name), expected, strict=False)] == expected


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
