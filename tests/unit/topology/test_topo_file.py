"""A node as ``--topo-file`` describes it."""

from __future__ import annotations

import pytest

from provision.errors import UsageError
from provision.topology.candidates import Mode
from provision.topology.topo_file import candidate, grouped, topo_file
from tests.unit.topology.boxes import BOXES, SMALL

QUAD = SMALL["quad"].machine().topology
ASSUMED = [
    "no gpu= is given: 20 GB/s are taken for an NVLink lane",
    "no pcie_gen= is given: 12 GB/s are taken for a PCIe slot",
    "no nic_gbit= is given: 12.5 GB/s are taken for a card",
]


def test_what_is_said_becomes_figures():
    said = "n1=a.txt,gpu=H100,nic_gbit=400,pcie_gen=5,cpu=amd,busy=0-1,3,mig=2,mode=share,leaf=l,rack=r,domain=d"
    node, warnings = candidate(topo_file(said), QUAD)
    machine = node.machine

    assert (machine.lane, machine.lanes, machine.pcie, machine.inter_cpu) == (206, 18, 480, 160)
    assert [port.rate for port in machine.ports] == [500, 500]
    assert (node.busy, node.mig, node.mode) == ({0, 1, 3}, {2}, Mode.SHARE)
    assert (node.name, node.leaf, node.rack, node.domain) == ("n1", "l", "r", "d")
    assert warnings == ()


def test_what_is_not_said_is_assumed_and_named():
    node, warnings = candidate(topo_file("n1=a=b.txt"), QUAD)

    assert (node.machine.lane, node.machine.pcie, node.machine.ports[0].rate, node.busy) == (200, 120, 125, frozenset())
    assert list(warnings) == ASSUMED


def test_measured_lanes_need_no_product():
    _, warnings = candidate(topo_file("n1=a.txt,pcie_gen=3,nic_gbit=100"), QUAD, ((0,) * 4,) * 4)

    assert warnings == ()


def test_a_product_without_known_lanes_is_named():
    _, warnings = candidate(topo_file("n1=a.txt,gpu=T1000,pcie_gen=3,nic_gbit=100"), QUAD)

    assert warnings == ("of T1000 no lane is known: 20 GB/s are taken for an NVLink lane",)


@pytest.mark.parametrize(("word", "lanes"), [("hopper", (206, 18)), ("Grace Hopper", (206, 18)), ("volta", (200, 6))])
def test_an_architecture_is_accepted_as_for_gdr(word, lanes):
    """Its typical product is assumed, and the warning names that."""
    node, (warning,) = candidate(topo_file(f"n1=a.txt,gpu={word},pcie_gen=3,nic_gbit=100"), QUAD)

    assert (node.machine.lane, node.machine.lanes) == lanes
    assert warning.startswith(f"gpu={word} is an architecture: NVLink lanes as of ")


def test_a_matrix_without_cards_gets_one_through_the_host():
    _, warnings = candidate(
        topo_file("n1=a.txt,gpu=A6000,pcie_gen=4,nic_gbit=100"), SMALL["bridges"].machine().topology
    )

    assert warnings == ("its matrix has no network card: 12.5 GB/s are taken for a card",)


def test_faulty_gpus_are_kept_out():
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
        ("a.txt", "no node and its file"),
        ("n1=", "no node and its file"),
        ("n1=a.txt,speed=9", "what is “speed=9”"),
        ("n1=a.txt,gpu", "what is “gpu”"),
        ("n1=a.txt,gpu=V100,gpu=A100", "what is “gpu=A100”"),
        ("n1=a.txt,nic_gbit=fast", "no rate in Gbit/s"),
        ("n1=a.txt,nic_gbit=0", "no rate in Gbit/s"),
        ("n1=a.txt,pcie_gen=9", "pcie_gen=9 is not known"),
        ("n1=a.txt,cpu=486", "cpu=486 is not known"),
        ("n1=a.txt,mode=best", "mode=best is not known"),
        ("n1=a.txt,busy=3-1", "names no GPUs"),
        ("n1=a.txt,busy=x", "names no GPUs"),
    ],
)
def test_what_means_nothing_is_refused(text, said):
    with pytest.raises(UsageError, match=said) as refused:
        topo_file(text)

    assert refused.value.remedy


def test_gpus_and_measurements_of_another_machine_are_refused():
    with pytest.raises(UsageError, match="its matrix has no GPU4"):
        candidate(topo_file("n1=a.txt,busy=3-4"), QUAD)
    with pytest.raises(UsageError, match="2 GPUs were measured, and its matrix has 4"):
        candidate(topo_file("n1=a.txt"), QUAD, ((0, 1), (1, 0)))


def test_a_warning_of_many_nodes_is_said_once():
    texts = [(f"n{number}", "odd") for number in range(6)] + [("n1", "other")]

    assert grouped(texts) == ("n0, n1, n2, n3 and 2 more: odd", "n1: other")
