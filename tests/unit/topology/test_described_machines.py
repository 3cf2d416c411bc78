"""The matrix that the simulated nvidia-smi renders for a machine is parsed as that machine."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from provision.lab.machines import load, names, to_json
from provision.topology.faults import find_faults
from provision.topology.matrix import parse
from tests.support.reasons import shown

PROGRAM = runpy.run_path(str(Path(__file__).parents[3] / "provision/lab/files/nvidia_smi.py"))
DRIVERS = {
    "418.126.02": "neither NUMA nodes nor a legend of cards",
    "470.57.02": "NUMA nodes, cards by name",
    "525.60.13": "cards by number and legend",
    "550.90.07": "the GPU's own NUMA node",
}


@pytest.fixture
def render(tmp_path, monkeypatch, capsys):
    """Print the matrix of a machine, with faults and some of its description changed."""

    def run(machine: str, faults: dict | None = None, **changes: object) -> str:
        path = tmp_path / "machine.json"
        path.write_text(json.dumps({**json.loads(to_json(load(machine))), "seed": "node 1", **changes}))
        (tmp_path / "faults.json").write_text(json.dumps(faults or {}))
        monkeypatch.setitem(PROGRAM["main"].__globals__, "MACHINE", str(path))
        assert PROGRAM["main"](["topo", "-m"]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("driver", DRIVERS, ids=DRIVERS.values())
@pytest.mark.parametrize("name", names())
def test_rendering_and_reading_are_inverse(render, name, driver):
    """Every described machine, in the columns of every age of the driver: nothing is lost and nothing added."""
    machine = load(name)
    described = json.loads(to_json(machine))
    numa = driver >= "450"

    read = parse(render(name, driver_version=driver))

    assert [list(row) for row in read.links] == described["matrix"]
    assert [nic.name for nic in read.nics] == [nic["name"] for nic in described["nics"]]
    assert [(gpu.index, gpu.numa, ",".join(gpu.cpus)) for gpu in read.gpus] == [
        (index, gpu["numa"] if numa else None, gpu["cpus"]) for index, gpu in enumerate(described["gpus"])
    ]
    assert read.warnings == ()


def test_a_container_sees_the_links_of_its_gpus(render):
    """Two of eight GPUs, renumbered, are read with the link that they have."""
    read = parse(render("dgx1v", visible=[0, 3]))

    assert [gpu.index for gpu in read.gpus] == [0, 1]
    assert read.links[0][:4] == ("X", "NV2", "PIX", "SYS")


ALL = " ".join(str(link) for link in range(18))


def test_a_gpu_whose_links_are_down_falls_back_to_pcie(render):
    """So a real one shows amid its peers; the finding names it, and the peers are still whole."""
    read = parse(render("hgxh100", {"5": {"nvlink.inactive": ALL}}))

    assert read.links[5][:8] == ("SYS", "SYS", "SYS", "SYS", "NODE", "X", "NODE", "NODE")
    assert read.links[0][1] == "NV18"
    assert [(fault.gpus, fault.certain) for fault in find_faults(read)] == [((5,), True)]
    assert [*map(shown, read.warnings)] == ["topology.no_nvlink: GPU5 7 18"]


def test_inactive_switch_links_are_missing_to_every_peer(render):
    """With two of eighteen lanes down, the GPU has sixteen lanes to every peer."""
    read = parse(render("hgxh100", {"2": {"nvlink.inactive": "4 9"}}))

    assert read.links[2][:4] == ("NV16", "NV16", "X", "NV16")
    assert read.links[0][1] == "NV18"
    assert [*map(shown, read.warnings)] == ["topology.fewer_lanes: topology.lanes_of_gpu 16 18 GPU2"]


def test_an_inactive_direct_link_is_missing_between_two_gpus_only(render):
    """GPU0 of the cube mesh has links 2 and 3 to GPU3; with both down the PCIe path is left."""
    one = parse(render("dgx1v", {"0": {"nvlink.inactive": "2"}}))
    both = parse(render("dgx1v", {"0": {"nvlink.inactive": "2 3"}}))

    assert [row[:4] for row in one.links[:1]] == [("X", "NV1", "NV1", "NV1")]
    assert (both.links[0][3], both.links[3][0], both.links[0][4]) == ("PHB", "PHB", "NV2")
