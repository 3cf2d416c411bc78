"""Ports and addresses of a lab of virtual machines."""

import socket

import pytest

from provision.errors import LabError
from provision.lab.base import DriverName, LabSpec
from provision.lab.vm_plan import Plan, load_plan, make_plan, port_is_free, save_plan


def spec(nodes, name="demo"):
    return LabSpec(name, DriverName.VM, nodes)


def everything_free(port, kind):  # noqa: ARG001 - the interface's
    return True


def plan_of(nodes, old=None, taken=()):
    return make_plan(spec(nodes), old, taken_subnets=taken, is_free=everything_free)


def test_ports_are_constant_when_nodes_are_added():
    """A lab that grows keeps the ports and addresses of the nodes that it has."""
    two = plan_of(2)
    three = plan_of(3, old=two)
    assert {name: three.ssh_ports[name] for name in two.ssh_ports} == two.ssh_ports
    assert (three.subnet, three.multicast) == (two.subnet, two.multicast)
    assert len(set(three.ssh_ports.values())) == 3


def test_labs_do_not_share_a_data_network():
    """A second lab gets another data network than one that exists."""
    first = plan_of(1)
    assert plan_of(1, taken=[first.subnet]).subnet != first.subnet


def test_each_node_has_its_own_addresses_and_cards():
    """No address, port or card appears twice in a lab."""
    plan = plan_of(4)
    names = list(plan.ssh_ports)
    assert names == ["demo-1", "demo-2", "demo-3", "demo-4"]
    assert [plan.data_address(name).rsplit(".", 1)[1] for name in names] == ["1", "2", "3", "4"]
    assert len({plan.mac(name, data=data) for name in names for data in (True, False)}) == 8


def test_a_used_port_is_skipped():
    """A port that another program listens on is not given to a node."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        assert not port_is_free(server.getsockname()[1], socket.SOCK_STREAM)


def test_a_plan_is_read_back_unchanged(tmp_path):
    """Later commands use the same values."""
    plan = Plan(7, 23000, {"demo-1": 22001})
    save_plan(tmp_path, plan)
    assert load_plan(tmp_path) == plan
    assert load_plan(tmp_path / "elsewhere") is None


def test_a_damaged_plan_has_a_remedy(tmp_path):
    """An invalid plan file is an error with a remedy."""
    (tmp_path / "plan.json").write_text('{"subnet": 7')
    with pytest.raises(LabError, match="cannot be read") as caught:
        load_plan(tmp_path)
    assert "down" in caught.value.remedy
