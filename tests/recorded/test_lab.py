"""The lab's simulated nvidia-smi and machines, compared with outputs of real machines."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree as ET

import pytest

from provision.lab.machines import load, to_json
from tests.recorded.data import recorded
from tests.support.nvidia_smi import run


def sample(name: str) -> str:
    """Return a recorded output without its first line, which names the source."""
    return recorded(name).split("\n", 1)[1]


def test_the_matrix_has_the_lines_that_the_real_tool_printed():
    """`topo -m` of the described DGX-1 equals a recorded one, column for column, with the driver of that time."""
    wanted = sample("topo/dgx1v_8xV100_nvlink_cubemesh_4xmlx5.txt").split("\n\n")[0].splitlines()

    printed = run("dgx1v", "topo", "-m", driver_version="418.126.02").stdout.split("\n\n")[0].splitlines()

    assert [line.rstrip() for line in printed] == [line.rstrip() for line in wanted]


def test_newer_drivers_number_the_cards_and_name_them_below():
    """With a current driver the columns are NIC0 etc. and a legend names the devices, as recorded."""
    wanted = sample("topo/h20_8gpu_NV18_8nic_PIX_NODE_rail.txt").replace("mlx5_", "mlx5_#")
    wanted = re.sub(r"#(\d)", lambda number: str(int(number[1]) - 1), wanted)  # that machine counts its cards from 1

    printed = run("hgxh100", "topo", "-m").stdout

    def comparable(text: str) -> list[str]:
        return [line.rstrip() for line in text.splitlines() if " = " not in line]

    assert comparable(printed) == comparable(wanted)


def test_the_overview_is_laid_out_as_the_real_one():
    """Apart from its values and one SIMULATED line, the table equals a recorded one character for character."""
    wanted = sample("rdma/nvidia-smi_table_550.90.07.txt").splitlines()[1:]
    lines = run("hgxh100").stdout.splitlines()[1:]
    simulated = [line for line in lines if "SIMULATED" in line]

    def shape(text: list[str]) -> list[str]:
        return [re.sub(r" *\d+(C|W)", r" #\1", line) for line in text]

    assert len(simulated) == 1
    assert {len(line) for line in lines if line} == {91}
    assert shape([line for line in lines if line not in simulated]) == shape(wanted)


def test_a_query_prints_titles_values_and_units_like_the_real_one():
    """The "--format=csv" of a recorded query is reproduced to the letter."""
    wanted = sample("rdma/nvidia-smi_query_csv_4xA100.txt")
    fields = "--query-gpu=index,name,memory.total,compute_cap,driver_version"

    printed = run("dgxa100", fields, "--format=csv", driver_version="580.105.08").stdout

    assert printed.splitlines()[:5] == wanted.splitlines()


def test_links_are_listed_as_recorded():
    """`nvlink -s` has the recorded layout."""
    wanted = re.sub(r"GPU-[0-9a-f-]{36}", "U", sample("rdma/nvidia-smi_nvlink_s_a100.txt")).split()

    assert re.sub(r"GPU-[0-9a-f-]{36}", "U", run("dgxa100", "nvlink", "-s").stdout).split() == wanted


def test_the_xml_is_well_formed_and_has_the_real_tags():
    """`-q -x` can be read by what reads the real one: the tags used are the recorded ones."""
    real = ET.fromstring(sample("rdma/nvidia-smi_q_x_a100-sxm4-v12.xml"))  # noqa: S314 - a file of ours
    ours = ET.fromstring(run("dgxa100", "-q", "-x").stdout)  # noqa: S314

    gpu = ours.find("gpu")
    assert gpu is not None
    assert {child.tag for child in gpu} <= {child.tag for child in real.find("gpu")}


def recorded_matrix(name: str) -> list[list[str]]:
    """The matrix of a recorded `nvidia-smi topo -m`, without affinity columns."""
    lines = [line for line in recorded(f"topo/{name}").splitlines() if not line.startswith("#")]
    count = sum(title.startswith(("GPU", "NIC", "mlx")) and "ID" not in title for title in lines[0].split("\t"))
    return [[cell.strip() for cell in line.split("\t")[1 : count + 1]] for line in lines[1 : count + 1]]


def matrix(name: str) -> list[list[str]]:
    return json.loads(to_json(load(name)))["matrix"]


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
    assert matrix(machine) == recorded_matrix(sample)


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
    real = recorded_matrix(sample)

    assert [row[: len(real)] for row in matrix(machine)[: len(real)]] == real
