"""The network of a node for profiles: from its facts, or from its inventory alone."""

from __future__ import annotations

import dataclasses

import pytest

from provision.facts import Unknown
from provision.facts.network import Address
from provision.facts.rdma import Gid, RdmaDevice, RdmaPort, RdmaStack
from provision.gdr.networks import node_network, stated_network
from provision.profiles import nccl_settings
from tests.unit.checks.conftest import VARIABLES, healthy, rdma_device

MINE = {**VARIABLES, "cluster_data_address": "10.77.0.1"}


def network(variables=None, **facts):
    """Return the network of a healthy node with some variables and facts replaced."""
    return node_network("gpu1", {**MINE, **(variables or {})}, dataclasses.replace(healthy(), **facts))


def infiniband(name):
    """Return an InfiniBand card."""
    return RdmaDevice(name, "mlx5_core", "uverbs0", (), (RdmaPort(1, "InfiniBand", "ACTIVE", "LinkUp", "200 Gb/sec"),))


def stack(*devices):
    """Return a node's RDMA devices."""
    return RdmaStack(devices, len(devices), (), "")


def test_a_roce_node_has_card_gid_and_interfaces():
    result = network()

    assert (result.fabric, result.gdr, result.gpus, result.nccl) == ("roce", True, 1, "2.27.5")
    assert (result.interface, result.management) == ("ens4", "ens3")
    assert (result.hcas, dict(result.gids), result.gid_index) == (("mlx5_0:1",), {"mlx5_0:1": 3}, 3)


def test_infiniband_has_no_gid_index():
    """The link layer distinguishes it from RoCE; the more frequent kind on a node is used."""
    result = network(rdma=stack(infiniband("mlx5_2"), infiniband("mlx5_3"), rdma_device("mlx5_0")))

    assert (result.fabric, result.hcas, result.gid_index) == ("ib", ("mlx5_2:1", "mlx5_3:1"), None)


def test_without_a_usable_card_the_fabric_is_tcp_with_the_reason():
    assert (network(rdma=stack()).fabric, network(rdma=stack()).why) == ("tcp", "it has no RDMA device")
    down = network(rdma=stack(rdma_device(state="DOWN")))
    assert (down.fabric, down.why) == ("tcp", "mlx5_0 port 1 is DOWN")
    soft = network(rdma=stack(rdma_device("rxe0", driver="")))
    assert (soft.fabric, "software RDMA devices" in soft.why) == ("tcp", True)


@pytest.mark.row(52)
def test_software_devices_are_used_on_request():
    """--fabric roce uses a software device like any other."""
    soft = dataclasses.replace(network(rdma=stack(rdma_device("rxe0", driver=""))), nccl="2.9.9")
    asked = {setting.name: setting.value for setting in nccl_settings([soft], "roce")}

    assert (asked["NCCL_IB_HCA"], asked["NCCL_IB_GID_INDEX"]) == ("=rxe0:1", "3")
    assert {"NCCL_IB_HCA", "NCCL_IB_GID_INDEX"}.isdisjoint(setting.name for setting in nccl_settings([soft]))


def test_an_unknown_network_is_not_tcp():
    result = network(rdma=Unknown("timed out"))

    assert (result.fabric, "timed out" in result.why) == ("", True)


def test_a_port_with_several_gids_is_marked():
    """NCCL might select the GID of another VLAN."""
    plain = rdma_device()
    gids = (*plain.ports[0].gids, Gid(5, "0000:0000:0000:0000:0000:ffff:c0a8:0001", "RoCE v2", "ens4.5"))
    port = dataclasses.replace(plain.ports[0], gids=gids)

    assert network(rdma=stack(dataclasses.replace(plain, ports=(port,)))).several_gids
    assert not network().several_gids


def test_interfaces_and_cards_in_the_inventory_take_precedence():
    two = stack(rdma_device("mlx5_0"), rdma_device("mlx5_10"))
    stated = {"cluster_data_interface": "bond0", "cluster_management_interface": "eth7", "cluster_hcas": ["mlx5_10"]}
    result = network(stated, rdma=two, addresses=(Address("ens4", "10.77.0.1", 24, "global"),))

    assert (result.interface, result.management, result.hcas) == ("bond0", "eth7", ("mlx5_10:1",))
    assert network(rdma=two).hcas == ("mlx5_0:1", "mlx5_10:1")


def test_a_network_from_the_inventory_alone():
    result = stated_network(
        "gpu1", {"cluster_gpus": 8, "cluster_gid_index": 3, "cluster_hcas": ["mlx5_0"], "cluster_nccl": "2.9.9"}
    )

    assert (result.fabric, result.gid_index, result.hcas, result.nccl) == ("roce", 3, ("mlx5_0:1",), "2.9.9")
    assert stated_network("gpu1", {"cluster_fabric": "roce-gdr"}).gdr
    nothing = stated_network("gpu1", {"cluster_gid_index": -1, "cluster_gpus": 0, "cluster_fabric": ""})
    assert (nothing.fabric, nothing.gid_index, nothing.gdr) == ("", None, None)
