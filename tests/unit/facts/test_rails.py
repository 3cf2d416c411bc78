"""The ports of a node for the data of jobs."""

from __future__ import annotations

import ipaddress

import pytest

from provision.facts import NodeFacts, Unknown
from provision.facts.network import Address, Route
from provision.facts.rails import node_rails
from provision.facts.rdma import Gid, RdmaDevice, RdmaPort, RdmaStack

NETWORKS = {"cluster_data_networks": ["10.10.0.0/16"]}


def gid(address, index=3, type_="RoCE v2"):
    """Return the GID of an IPv4 address, as in sysfs."""
    text = f"{int(ipaddress.IPv4Address(address)):08x}"
    return Gid(index, f"0000:0000:0000:0000:0000:ffff:{text[:4]}:{text[4:]}", type_, "ens4")


def roce(name, *gids, state="ACTIVE", driver="mlx5_core", rate="100 Gb/sec (4X EDR)", net="ens4"):
    """Return a card with one Ethernet port."""
    return RdmaDevice(name, driver, "uverbs0", (net,), (RdmaPort(1, "Ethernet", state, "LinkUp", rate, gids),))


def infiniband(name, state="ACTIVE", rate="400 Gb/sec (4X NDR)"):
    """Return a card with one InfiniBand port and no address."""
    return RdmaDevice(name, "mlx5_core", "uverbs0", (), (RdmaPort(1, "InfiniBand", state, "LinkUp", rate),))


def rails(*devices, variables=NETWORKS, addresses=(("ens4", "10.10.0.1"),)):
    """Return the data ports of gpu1 with these devices and addresses, all of them /16."""
    facts = NodeFacts(
        rdma=RdmaStack(devices, len(devices), (), ""),
        addresses=tuple(Address(net, address, 16, "global") for net, address in addresses),
        routes=(Route("default", "ens4", ""),),
    )
    return node_rails("gpu1", variables, facts)


def test_a_roce_port_uses_the_gid_of_its_data_address():
    """The index is that of the RoCE v2 GID of an IPv4 address, not of v1 or IPv6."""
    result = rails(
        roce(
            "mlx5_0",
            Gid(0, "fe80:0000:0000:0000:0a00:27ff:fe00:0001", "RoCE v2", "ens4"),
            gid("10.10.0.1", 2, "IB/RoCE v1"),
            gid("10.10.0.1", 5),
        )
    )
    (end,) = result.endpoints

    assert (end.node, end.device, end.port, end.address, end.gid_index) == ("gpu1", "mlx5_0", 1, "10.10.0.1", 5)
    assert (end.soft, end.line_rate_gbit) == (False, 100.0)
    assert (result.problems, result.absent) == ((), "")


def test_ports_of_one_network_are_numbered_in_device_order():
    """mlx5_10 follows mlx5_2, so that equal nodes match card by card; a port that is down keeps its number."""
    result = rails(
        roce("mlx5_10", gid("10.10.0.3")),
        roce("mlx5_0", gid("10.10.0.1")),
        roce("mlx5_2", gid("10.10.0.2"), state="DOWN"),
    )

    assert [(end.device, end.rail) for end in result.endpoints] == [
        ("mlx5_0", "10.10.0.0/16 #1"),
        ("mlx5_10", "10.10.0.0/16 #3"),
    ]
    assert result.problems == ("mlx5_2 port 1 is DOWN",)


def test_a_card_on_another_network_is_not_a_data_port():
    result = rails(roce("mlx5_0", gid("10.10.0.1")), roce("mlx5_1", gid("192.0.2.1"), net="ens9"))

    assert [end.device for end in result.endpoints] == ["mlx5_0"]
    assert result.problems == ()


@pytest.mark.parametrize(
    ("variables", "networks"),
    [
        ({"cluster_data_address": "10.10.0.1"}, ["10.10.0.0/16 #1"]),
        ({}, ["10.10.0.0/16 #1", "10.20.0.0/16 #1"]),
    ],
)
def test_without_configured_networks_the_nodes_own_are_used(variables, networks):
    result = rails(
        roce("mlx5_0", gid("10.10.0.1")),
        roce("mlx5_1", gid("10.20.0.1"), net="ens5"),
        variables=variables,
        addresses=(("ens4", "10.10.0.1"), ("ens5", "10.20.0.1")),
    )

    assert [end.rail for end in result.endpoints] == networks


@pytest.mark.parametrize(
    ("device", "problem"),
    [
        (roce("mlx5_0"), "mlx5_0 port 1 has no RoCE v2 GID of 10.10.0.1"),
        (roce("mlx5_0", gid("10.10.0.1", type_="IB/RoCE v1")), "mlx5_0 port 1 has no RoCE v2 GID of 10.10.0.1"),
        (roce("rxe0", gid("10.10.0.1"), state="DOWN", driver=""), "rxe0 port 1 is DOWN"),
        (roce("rxe0", state="DOWN", driver=""), "rxe0 port 1 is DOWN"),
        (infiniband("mlx5_0", "INIT"), "no InfiniBand port is active: mlx5_0 port 1 is INIT"),
    ],
)
def test_an_inactive_data_port_is_reported(device, problem):
    assert rails(device).problems == (problem,)


def test_infiniband_ports_are_paired_by_name_and_use_the_data_address():
    result = rails(infiniband("mlx5_0"), infiniband("mlx5_1", "DOWN"), infiniband("mlx5_2"))

    assert [(end.rail, end.gid_index, end.address) for end in result.endpoints] == [
        ("mlx5_0 port 1", None, "10.10.0.1"),
        ("mlx5_2 port 1", None, "10.10.0.1"),
    ]
    assert result.problems == ()
    assert "no address on the data network" in rails(infiniband("mlx5_0"), addresses=()).problems[0]


def test_software_devices_count_only_without_hardware_devices():
    soft = roce("rxe0", gid("10.10.0.1"), driver="", rate="2.5 Gb/sec (1X SDR)")
    (end,) = rails(soft).endpoints

    assert (end.soft, end.line_rate_gbit) == (True, None)
    assert [e.device for e in rails(soft, roce("mlx5_0", gid("10.10.0.2"))).endpoints] == ["mlx5_0"]


def test_nodes_without_a_data_port_have_a_reason():
    other = roce("mlx5_0", gid("192.0.2.1"), net="ens9")
    excluded = NETWORKS | {"training_container_rdma_excluded": ["mlx5_0"]}

    assert rails().absent == "it has no RDMA device"
    assert "(mlx5_0) is on the data network (10.10.0.0/16)" in rails(other).absent
    assert rails(roce("mlx5_0", gid("10.10.0.1")), variables=excluded).absent == "it has no RDMA device"
    assert "hung" in node_rails("gpu1", {}, NodeFacts(rdma=Unknown("hung: cat"))).problems[0]


@pytest.mark.parametrize(
    ("layer", "rate", "gbit"),
    [
        ("InfiniBand", "40 Gb/sec (4X QDR)", 32.0),
        ("Ethernet", "40 Gb/sec (4X QDR)", 40.0),
        ("InfiniBand", "56 Gb/sec (4X FDR)", 56.0),
        ("InfiniBand", "400 Gb/sec (4X NDR)", 400.0),
        ("Ethernet", "100 Gb/sec", 100.0),
        ("Ethernet", "", None),
    ],
)
def test_the_line_rate_excludes_the_line_code(layer, rate, gbit):
    """The rate of QDR InfiniBand includes its 8b/10b encoding."""
    assert RdmaPort(1, layer, "ACTIVE", "LinkUp", rate).line_rate_gbit == gbit
