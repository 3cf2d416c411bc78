"""NCCL's variables by fabric, by version, and by node."""

from __future__ import annotations

import dataclasses

import pytest

from provision.profiles import NodeNetwork, common_fabric, nccl_settings, overridden

ROCE = NodeNetwork(
    "gpu1",
    "roce",
    gdr=True,
    gpus=8,
    interface="bond0",
    hcas=("mlx5_0:1", "mlx5_1:1"),
    gids={"mlx5_0:1": 3, "mlx5_1:1": 3},
    nccl="2.9.9",
)
IB = dataclasses.replace(ROCE, fabric="ib", interface="ib0", gids={})
TCP = NodeNetwork("gpu1", "tcp", gpus=8, interface="eth0", why="it has no RDMA device", nccl="2.9.9")


def another(network, name="gpu2", **changes):
    """Return a second node, like the first but for the changes."""
    return dataclasses.replace(network, node=name, **changes)


def values(*networks, wanted=""):
    """Return the variables on the command line."""
    return {s.name: s.value for s in nccl_settings(networks, wanted) if not s.nodes}


def by_node(*networks):
    """Return the variables with a value for each node."""
    return {s.name: dict(s.nodes) for s in nccl_settings(networks) if s.nodes}


@pytest.mark.row(35, 52)
def test_tcp_disables_rdma_and_sets_the_interface():
    assert values(TCP) == {"NCCL_DEBUG": "WARN", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "=eth0"}


@pytest.mark.row(35, 52)
def test_roce_sets_cards_interface_and_gid():
    """Cards match exactly, so that mlx5_1 does not match mlx5_10."""
    assert values(ROCE) == {
        "NCCL_DEBUG": "WARN",
        "NCCL_IB_DISABLE": "0",
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
        "NCCL_SOCKET_IFNAME": "=bond0",
        "NCCL_IB_GID_INDEX": "3",
    }


@pytest.mark.row(52)
def test_infiniband_sets_no_gid():
    assert "NCCL_IB_GID_INDEX" not in values(IB)
    assert values(IB)["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"


@pytest.mark.parametrize(
    ("nccl", "several", "gid_settings"),
    [
        ("2.9.9", False, True),
        ("2.20.5", False, True),
        ("2.21.0", False, False),
        ("2.21.5", True, True),
        ("2.100.1", False, False),
        ("", False, True),
        ("odd", False, True),
    ],
)
def test_the_gid_is_set_for_an_nccl_that_cannot_select_it(nccl, several, gid_settings):
    """NCCL selects it since 2.21, unless there are several; an unknown version may be older."""
    network = dataclasses.replace(ROCE, nccl=nccl, several_gids=several)

    assert ("NCCL_IB_GID_INDEX" in values(network)) is gid_settings


def test_ports_with_another_gid_index_are_excluded_if_one_index_serves_all():
    """A wrong index breaks the connection; the reason names the excluded ports. A newer NCCL uses all ports."""
    odd = dataclasses.replace(ROCE, hcas=(*ROCE.hcas, "mlx5_2:1"), gids={**ROCE.gids, "mlx5_2:1": 5})
    (hca,) = [setting for setting in nccl_settings([odd]) if setting.name == "NCCL_IB_HCA"]

    assert hca.value == "=mlx5_0:1,mlx5_1:1"
    assert "mlx5_2:1" in hca.reason
    assert values(dataclasses.replace(odd, nccl="2.27.5"))["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1,mlx5_2:1"


@pytest.mark.row(52)
@pytest.mark.parametrize("network", [ROCE, IB])
def test_without_gpudirect_nccl_gets_the_level_by_name(network):
    """The numbers of levels changed with NCCL's versions. With GPUDirect, NCCL's default distance is best."""
    assert "NCCL_NET_GDR_LEVEL" not in values(network)
    assert values(dataclasses.replace(network, gdr=False))["NCCL_NET_GDR_LEVEL"] == "LOC"


def test_a_requested_fabric_includes_the_use_of_gpudirect():
    """`roce` uses host memory, `roce-gdr` does not."""
    assert values(ROCE, wanted="roce")["NCCL_NET_GDR_LEVEL"] == "LOC"
    assert "NCCL_NET_GDR_LEVEL" not in values(dataclasses.replace(ROCE, gdr=False), wanted="roce-gdr")
    assert values(ROCE, wanted="tcp") == values(dataclasses.replace(TCP, interface="bond0"))


@pytest.mark.parametrize(("dma_buf", "value"), [(True, "1"), (False, "0"), (None, None)])
def test_dma_buf_follows_the_verdict(dma_buf, value):
    """NCCL fails if only one side supports DMA-BUF."""
    assert values(dataclasses.replace(ROCE, dma_buf=dma_buf)).get("NCCL_DMABUF_ENABLE") == value


def test_unknown_values_are_left_to_nccl():
    unknown = dataclasses.replace(ROCE, fabric="", why="its RDMA devices are not known: timed out")

    assert values(unknown) == {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=bond0"}
    assert values(ROCE, another(unknown)) == {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=bond0"}


@pytest.mark.row(52)
def test_variables_that_differ_have_a_value_for_each_node():
    second = another(ROCE, interface="ens4", hcas=("mlx5_bond_0:1",), gids={"mlx5_bond_0:1": 5})

    assert by_node(ROCE, second) == {
        "NCCL_IB_HCA": {"gpu1": "=mlx5_0:1,mlx5_1:1", "gpu2": "=mlx5_bond_0:1"},
        "NCCL_SOCKET_IFNAME": {"gpu1": "=bond0", "gpu2": "=ens4"},
        "NCCL_IB_GID_INDEX": {"gpu1": "3", "gpu2": "5"},
    }
    assert values(ROCE, second) == {"NCCL_DEBUG": "WARN", "NCCL_IB_DISABLE": "0"}


def test_a_variable_that_only_some_nodes_need_is_set_only_there():
    assert by_node(ROCE, another(ROCE, gdr=False)) == {"NCCL_NET_GDR_LEVEL": {"gpu2": "LOC"}}
    assert by_node(ROCE, another(ROCE, nccl="2.27.5")) == {"NCCL_IB_GID_INDEX": {"gpu1": "3"}}


@pytest.mark.parametrize(
    ("networks", "fabric", "words"),
    [
        ([ROCE, another(ROCE)], "roce", ""),
        ([ROCE, another(TCP)], "tcp", "gpu2: it has no RDMA device"),
        ([ROCE, another(IB)], "tcp", "gpu2 has ib, gpu1 has roce"),
        ([], "", "no nodes"),
    ],
)
def test_all_nodes_use_their_common_fabric(networks, fabric, words):
    """NCCL cannot mix fabrics; the reason names the node that decides."""
    result, why = common_fabric(networks)

    assert result == fabric
    assert words in why


def test_each_variable_has_its_source():
    assert all(setting.source and setting.reason for setting in nccl_settings([ROCE]))
    sources = {setting.name: setting.source for setting in nccl_settings([ROCE])}
    assert sources["NCCL_IB_DISABLE"] == "profile roce-gdr"
    assert sources["NCCL_IB_HCA"] == "node facts"


@pytest.mark.row(35)
def test_the_users_variables_take_precedence():
    """It keeps its position; its value is passed by name."""
    second = another(ROCE, gids={"mlx5_0:1": 5, "mlx5_1:1": 5})
    result = overridden(nccl_settings([ROCE, second]), ["NCCL_IB_GID_INDEX", "MINE"])
    chosen = {setting.name: setting for setting in result}

    assert [setting.name for setting in result][-2:] == ["NCCL_IB_GID_INDEX", "MINE"]
    assert chosen["NCCL_IB_GID_INDEX"].words() == ["-x", "NCCL_IB_GID_INDEX"]
    assert chosen["NCCL_IB_GID_INDEX"].source == "--env"
    assert not chosen["NCCL_IB_GID_INDEX"].nodes
