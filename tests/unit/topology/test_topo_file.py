"""A node as ``--topo-file`` describes it."""

from __future__ import annotations

import pytest

from provision.errors import UsageError
from provision.topology.candidates import Mode
from provision.topology.topo_file import candidate, grouped, topo_file
from tests.unit.topology.boxes import BOXES, SMALL

QUAD = SMALL["quad"].machine().topology
ASSUMED = [
    "gpu= is not set; 20 GB/s are assumed per NVLink lane",
    "pcie_gen= is not set; 12 GB/s are assumed per PCIe slot",
    "nic_gbit= is not set; 12.5 GB/s are assumed per network card",
]


def test_settings_are_converted_to_rates():
    said = "n1=a.txt,gpu=H100,nic_gbit=400,pcie_gen=5,cpu=amd,busy=0-1,3,mig=2,mode=share,leaf=l,rack=r,domain=d"
    node, warnings = candidate(topo_file(said), QUAD)
    machine = node.machine

    assert (machine.lane, machine.lanes, machine.pcie, machine.inter_cpu) == (206, 18, 480, 160)
    assert [port.rate for port in machine.ports] == [500, 500]
    assert (node.busy, node.mig, node.mode) == ({0, 1, 3}, {2}, Mode.SHARE)
    assert (node.name, node.leaf, node.rack, node.domain) == ("n1", "l", "r", "d")
    assert warnings == ()


def test_missing_settings_are_assumed_with_warnings():
    node, warnings = candidate(topo_file("n1=a=b.txt"), QUAD)

    assert (node.machine.lane, node.machine.pcie, node.machine.ports[0].rate, node.busy) == (200, 120, 125, frozenset())
    assert list(warnings) == ASSUMED


def test_measured_lanes_need_no_product():
    _, warnings = candidate(topo_file("n1=a.txt,pcie_gen=3,nic_gbit=100"), QUAD, ((0,) * 4,) * 4)

    assert warnings == ()


def test_a_product_without_known_lanes_is_reported():
    _, warnings = candidate(topo_file("n1=a.txt,gpu=T1000,pcie_gen=3,nic_gbit=100"), QUAD)

    assert warnings == ("the NVLink lanes of T1000 are unknown; 20 GB/s are assumed per NVLink lane",)


@pytest.mark.parametrize(("word", "lanes"), [("hopper", (206, 18)), ("Grace Hopper", (206, 18)), ("volta", (200, 6))])
def test_an_architecture_is_accepted_as_for_gdr(word, lanes):
    """Its typical product is assumed, and the warning names that."""
    node, (warning,) = candidate(topo_file(f"n1=a.txt,gpu={word},pcie_gen=3,nic_gbit=100"), QUAD)

    assert (node.machine.lane, node.machine.lanes) == lanes
    assert warning.startswith(f"gpu={word} is an architecture; the NVLink lanes of ")


def test_a_matrix_without_cards_gets_an_assumed_rate():
    _, warnings = candidate(
        topo_file("n1=a.txt,gpu=A6000,pcie_gen=4,nic_gbit=100"), SMALL["bridges"].machine().topology
    )

    assert warnings == ("the matrix has no network card; 12.5 GB/s are assumed per network card",)


def test_faulty_gpus_are_excluded():
    """A GPU that has fallen off the NVLink switches while its peers are on them."""
    whole = BOXES["HGX H100"].machine().topology
    fallen = [list(row) for row in whole.links]
    for gpu in range(7):
        fallen[gpu][7] = fallen[7][gpu] = "NODE"
    broken = type(whole)(whole.gpus, whole.nics, tuple(map(tuple, fallen)))

    assert candidate(topo_file("n=a"), broken)[0].faulty == {7}
    assert candidate(topo_file("n=a"), whole)[0].faulty == frozenset()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a.txt", "NAME=FILE is missing"),
        ("n1=", "NAME=FILE is missing"),
        ("n1=a.txt,speed=9", "invalid setting 'speed=9'"),
        ("n1=a.txt,gpu", "invalid setting 'gpu'"),
        ("n1=a.txt,gpu=V100,gpu=A100", "invalid setting 'gpu=A100'"),
        ("n1=a.txt,nic_gbit=fast", "invalid nic_gbit=fast"),
        ("n1=a.txt,nic_gbit=0", "invalid nic_gbit=0"),
        ("n1=a.txt,pcie_gen=9", "unknown pcie_gen=9"),
        ("n1=a.txt,cpu=486", "unknown cpu=486"),
        ("n1=a.txt,mode=best", "unknown mode=best"),
        ("n1=a.txt,busy=3-1", "invalid list busy=3-1"),
        ("n1=a.txt,busy=x", "invalid list busy=x"),
    ],
)
def test_invalid_settings_are_refused(text, said):
    with pytest.raises(UsageError, match=said) as refused:
        topo_file(text)

    assert refused.value.remedy


def test_gpus_and_measurements_of_another_machine_are_refused():
    with pytest.raises(UsageError, match="unknown GPU 4"):
        candidate(topo_file("n1=a.txt,busy=3-4"), QUAD)
    with pytest.raises(UsageError, match="2 GPUs were measured, but the matrix has 4"):
        candidate(topo_file("n1=a.txt"), QUAD, ((0, 1), (1, 0)))


def test_a_warning_of_many_nodes_is_shown_once():
    texts = [(f"n{number}", "odd") for number in range(6)] + [("n1", "other")]

    assert grouped(texts) == ("n0, n1, n2, n3 and 2 more: odd", "n1: other")
