"""NCCL's variables: by fabric, by version, and by node where nodes differ."""

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
    """A second node, like the first but for the changes."""
    return dataclasses.replace(network, node=name, **changes)


def values(*networks, wanted=""):
    """The variables that stand on the command line."""
    return {s.name: s.value for s in nccl_settings(networks, wanted) if not s.nodes}


def by_node(*networks):
    """The variables that each node has its own value of."""
    return {s.name: dict(s.nodes) for s in nccl_settings(networks) if s.nodes}


@pytest.mark.row(35, 52)
def test_over_tcp_rdma_is_switched_off_and_the_interface_named():
    """Data goes over the interface of the data address alone."""
    assert values(TCP) == {"NCCL_DEBUG": "WARN", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "=eth0"}


@pytest.mark.row(35, 52)
def test_over_roce_cards_interface_and_gid_are_named():
    """Cards match exactly, so that mlx5_1 is not mlx5_10 too."""
    assert values(ROCE) == {
        "NCCL_DEBUG": "WARN",
        "NCCL_IB_DISABLE": "0",
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
        "NCCL_SOCKET_IFNAME": "=bond0",
        "NCCL_IB_GID_INDEX": "3",
    }


@pytest.mark.row(52)
def test_over_infiniband_there_is_no_gid():
    """InfiniBand addresses by itself."""
    assert "NCCL_IB_GID_INDEX" not in values(IB)
    assert values(IB)["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"


@pytest.mark.parametrize(
    ("nccl", "several", "told"),
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
def test_the_gid_is_told_to_an_nccl_that_would_not_find_it(nccl, several, told):
    """From 2.21 on it finds it by itself, unless there is a choice; of an unknown version nothing is expected."""
    network = dataclasses.replace(ROCE, nccl=nccl, several_gids=several)

    assert ("NCCL_IB_GID_INDEX" in values(network)) is told


def test_ports_with_another_gid_index_are_left_out_where_one_index_is_for_all():
    """A wrong index fails the connection; the reason names what was left out. A newer NCCL takes all ports."""
    odd = dataclasses.replace(ROCE, hcas=(*ROCE.hcas, "mlx5_2:1"), gids={**ROCE.gids, "mlx5_2:1": 5})
    (hca,) = [setting for setting in nccl_settings([odd]) if setting.name == "NCCL_IB_HCA"]

    assert hca.value == "=mlx5_0:1,mlx5_1:1"
    assert "mlx5_2:1" in hca.reason
    assert values(dataclasses.replace(odd, nccl="2.27.5"))["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1,mlx5_2:1"


@pytest.mark.row(52)
@pytest.mark.parametrize("network", [ROCE, IB])
def test_without_gpudirect_nccl_is_told_by_name_not_to_try(network):
    """What a number means changed with NCCL's versions. With GPUDirect NCCL's own distance is the best known."""
    assert "NCCL_NET_GDR_LEVEL" not in values(network)
    assert values(dataclasses.replace(network, gdr=False))["NCCL_NET_GDR_LEVEL"] == "LOC"


def test_the_fabric_that_is_asked_for_decides_on_gpudirect_too():
    """`roce` goes by the host's memory, `roce-gdr` does not."""
    assert values(ROCE, wanted="roce")["NCCL_NET_GDR_LEVEL"] == "LOC"
    assert "NCCL_NET_GDR_LEVEL" not in values(dataclasses.replace(ROCE, gdr=False), wanted="roce-gdr")
    assert values(ROCE, wanted="tcp") == values(dataclasses.replace(TCP, interface="bond0"))


@pytest.mark.parametrize(("dma_buf", "value"), [(True, "1"), (False, "0"), (None, None)])
def test_dma_buf_is_told_where_the_verdict_says_so(dma_buf, value):
    """A half of DMA-BUF makes NCCL fail."""
    assert values(dataclasses.replace(ROCE, dma_buf=dma_buf)).get("NCCL_DMABUF_ENABLE") == value


def test_what_nobody_knows_is_left_to_nccl():
    """Without facts about RDMA nothing about it is set; the interface is known all the same."""
    unknown = dataclasses.replace(ROCE, fabric="", why="its RDMA devices are not known: timed out")

    assert values(unknown) == {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=bond0"}
    assert values(ROCE, another(unknown)) == {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=bond0"}


@pytest.mark.row(52)
def test_where_nodes_differ_each_has_its_own_and_nothing_stands_for_all():
    """One value would be wrong on one of them."""
    second = another(ROCE, interface="ens4", hcas=("mlx5_bond_0:1",), gids={"mlx5_bond_0:1": 5})

    assert by_node(ROCE, second) == {
        "NCCL_IB_HCA": {"gpu1": "=mlx5_0:1,mlx5_1:1", "gpu2": "=mlx5_bond_0:1"},
        "NCCL_SOCKET_IFNAME": {"gpu1": "=bond0", "gpu2": "=ens4"},
        "NCCL_IB_GID_INDEX": {"gpu1": "3", "gpu2": "5"},
    }
    assert values(ROCE, second) == {"NCCL_DEBUG": "WARN", "NCCL_IB_DISABLE": "0"}


def test_a_variable_that_only_some_nodes_need_is_set_on_those_alone():
    """The others keep NCCL's default."""
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
def test_all_nodes_use_what_all_of_them_have(networks, fabric, words):
    """NCCL does not mix; the reason names the node that decides."""
    found, why = common_fabric(networks)

    assert found == fabric
    assert words in why


def test_each_variable_says_where_it_comes_from():
    """A table of them is worth reading."""
    assert all(setting.source and setting.reason for setting in nccl_settings([ROCE]))
    sources = {setting.name: setting.source for setting in nccl_settings([ROCE])}
    assert sources["NCCL_IB_DISABLE"] == "profile roce-gdr"
    assert sources["NCCL_IB_HCA"] == "node facts"


@pytest.mark.row(35)
def test_the_user_decides_over_every_variable():
    """Its place stays, its value goes by name; a value for each node is gone with it."""
    second = another(ROCE, gids={"mlx5_0:1": 5, "mlx5_1:1": 5})
    found = overridden(nccl_settings([ROCE, second]), ["NCCL_IB_GID_INDEX", "MINE"])
    chosen = {setting.name: setting for setting in found}

    assert [setting.name for setting in found][-2:] == ["NCCL_IB_GID_INDEX", "MINE"]
    assert chosen["NCCL_IB_GID_INDEX"].words() == ["-x", "NCCL_IB_GID_INDEX"]
    assert chosen["NCCL_IB_GID_INDEX"].source == "--env"
    assert not chosen["NCCL_IB_GID_INDEX"].nodes
