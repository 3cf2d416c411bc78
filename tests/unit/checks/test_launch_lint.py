"""What is said about a job's variables and flags before it starts."""

from __future__ import annotations

import dataclasses

import pytest

from provision.checks.launch_lint import LaunchScene, lint
from provision.commands.mpirun_words import parse_line
from provision.facts import Unknown
from provision.facts.network import Address
from provision.facts.rdma import Gid, RdmaStack
from provision.gdr.networks import node_network
from provision.launchers import HostEntry
from tests.unit.checks.conftest import VARIABLES, gpu, healthy, rdma_device

ENTRIES = (HostEntry("gpu1", "10.77.0.1", 8, "gpu"), HostEntry("gpu2", "10.77.0.2", 8, "gpu"))
MAPPED = "0000:0000:0000:0000:0000:ffff:"
RIGHT = Gid(3, f"{MAPPED}0a4d:0002", "RoCE v2", "ens4")
NETWORK = {**VARIABLES, "cluster_data_networks": ["10.77.0.0/24"]}


def scene(line="", variables=None, *, version=4, second=None, fabric="", asked=True):
    """A job on two healthy nodes, the second as said."""
    facts = {"gpu1": healthy(), "gpu2": second or healthy(2)} if asked else {}
    networks = {name: node_network(name, NETWORK, results) for name, results in facts.items()}
    typed = parse_line(["mpirun", *line.split(), "prog"]) if line else None
    given = {name: value for name, value in (typed.variables if typed else {}).items() if value is not None}
    return LaunchScene(
        version,
        ENTRIES,
        variables={**(variables or {}), **given},
        parameters=typed.parameters if typed else (),
        line=typed,
        fabric=fabric,
        networks=networks,
        facts=facts,
    )


def findings(*args, **kwargs):
    """Each finding as one text, those that fail marked."""
    return [("FAILS " if f.fails else "") + f"{f} -> {f.remedy}" for f in lint(scene(*args, **kwargs))]


def one(*args, **kwargs):
    """The only finding."""
    (results,) = findings(*args, **kwargs)
    return results


def with_gids(*gids):
    """The second node, its card with these GIDs."""
    device = rdma_device()
    port = dataclasses.replace(device.ports[0], gids=gids)
    return dataclasses.replace(healthy(2), rdma=RdmaStack((dataclasses.replace(device, ports=(port,)),), 1, (), ""))


@pytest.mark.parametrize(
    ("line", "variables"),
    [
        ("", {}),
        ("-np 16 -H gpu1:8,gpu2:8 -mca btl_tcp_if_include ens4 -mca btl ^openib", {}),
        ("-np 16 -mca btl_tcp_if_include 10.77.0.0/16", {}),
        ("-np 16 -H gpu1:8 -H gpu2:8 -npernode 8", {}),
        ("-np 10 -H gpu1:8,gpu2:2 -npernode 8", {}),
        ("", {"NCCL_SOCKET_IFNAME": "=ens4", "NCCL_IB_HCA": "=mlx5_0", "NCCL_IB_GID_INDEX": "3"}),
        ("", {"NCCL_SOCKET_IFNAME": "^docker,lo", "NCCL_IB_GID_INDEX": "-1", "NCCL_NET_GDR_LEVEL": "PXB"}),
        ("", {"NCCL_IB_HCA": "^=mlx5_7", "NCCL_IB_DISABLE": "0", "NCCL_NET_GDR_LEVEL": "0"}),
    ],
)
def test_correct_command_lines_have_no_findings(line, variables):
    """A warning that means nothing teaches to read none."""
    assert findings(line, variables) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-np 17", ["FAILS -np 17 is more than the 16 slots", "gpu1 8 (gpu)", "-np 16"]),
        ("-np 9 -H gpu1:8", ["FAILS -np 9 is more than the 8 slots"]),
        ("-np 2 -H gpu3:8", ["FAILS -H names gpu3", "gpu1, gpu2"]),
        ("-np 12 -H gpu1:8,gpu2:8", ["-np 12 leaves 4 of 16 slots idle"]),
        ("--prtemca prte_if_include ens4", ["FAILS --prtemca prte_if_include", "Open MPI 4"]),
        (
            "-mca btl_tcp_if_include ens4 -mca btl_tcp_if_exclude lo",
            ["FAILS btl_tcp_if_include and btl_tcp_if_exclude are both given"],
        ),
        (
            "-mca btl_tcp_if_include bond0",
            ["FAILS btl_tcp_if_include bond0: gpu1 has ens4", "its data interface is ens4"],
        ),
        ("-npernode 9", ["FAILS 9 ranks on each node are too many: gpu1 has 8 slots", "at most 8"]),
        ("--map-by ppr:9:node", ["FAILS 9 ranks on each node"]),
        ("-N 8 -H gpu1:8,gpu2:4", ["FAILS 8 ranks on each node are too many: gpu2 has 4 slots"]),
        ("-mca oob_tcp_if_include 10.9.0.0/16", ["FAILS oob_tcp_if_include 10.9.0.0/16"]),
        ("-x NCCL_SOCKET_IFNAME=eth0", ["FAILS NCCL_SOCKET_IFNAME=eth0: gpu1 has ens4"]),
        ("--foo", ["--foo is no flag of mpirun that we know"]),
    ],
)
def test_flags_are_compared_with_the_nodes(line, words):
    """Each with what was seen on which node, and what to write instead."""
    text = findings(line)[0]

    assert all(word in text for word in words), text


def test_a_host_without_a_slot_count_has_one_slot():
    """-H gpu1,gpu2 starts two ranks on sixteen GPUs."""
    assert any(
        "-H gives gpu1, gpu2 one slot" in text and "-H gpu1:8,gpu2:8" in text for text in findings("-H gpu1,gpu2")
    )


def test_explicit_oversubscription_is_accepted():
    """Who asks for it gets it."""
    assert findings("-np 99 --oversubscribe") == []


@pytest.mark.parametrize(
    ("typed", "instead"),
    [
        ("-mca oob_tcp_if_include ens4", "--prtemca prte_if_include ens4"),
        ("--mca orte_keep_fqdn_hostnames t", "--prtemca prte_keep_fqdn_hostnames t"),
        ("--mca plm_rsh_args -p22", "--prtemca plm_ssh_args -p22"),
        ("--mca btl ^openib", "--mca btl self,sm,tcp"),
        ("--mca btl openib,self", "--mca btl self"),
    ],
)
def test_names_of_version_4_are_reported_under_version_5(typed, instead):
    """With what to write; under version 4 they are right."""
    text = one(typed, version=5)

    assert "Open MPI 5, which does not take it so" in text
    assert f"Write {instead}" in text
    assert not any("does not take it so" in text for text in findings(typed))


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--mca oob_tcp_dynamic_ipv4_ports 5000-5010", ["which has no oob", "--prtemca prte_if_include"]),
        ("--mca oob ^ud", ["which has no oob"]),
        ("--mca btl_openib_allow_ib 1", ["which has no openib", "Leave it out"]),
        ("--mca btl openib", ["does not take it so -> Leave it out."]),
    ],
)
def test_options_removed_in_version_5_are_reported(typed, words):
    """It would pass over these without a word."""
    text = one(typed, version=5)

    assert all(word in text for word in words), text
    assert findings(typed) == []


def test_values_behind_an_equals_sign_fail_under_version_4():
    """Its mpirun knows no such flag, or takes the next word for the value; version 5 reads them."""
    assert one("--np=16").startswith("FAILS --np=16: the containers have Open MPI 4")
    assert one("--host=gpu1:8,gpu2:8").endswith("-> Write --host gpu1:8,gpu2:8")
    assert findings("--np=16 --host=gpu1:8,gpu2:8", version=5) == []
    assert "is more than the 16 slots" in one("--np=17", version=5)


def partitioned(*indices):
    """The second node with GPUs in MIG mode."""
    gpus = tuple(
        dataclasses.replace(card, health=dataclasses.replace(card.health, mig=card.index in indices))
        for card in (gpu(index) for index in range(4))
    )
    return dataclasses.replace(healthy(2), gpus=gpus)


def test_ranks_that_would_share_an_instance_are_reported():
    """A process sees one MIG instance, and by the number of a GPU it is the first, for every rank."""
    text = one(second=partitioned(1, 3))

    assert text.startswith("GPUs in MIG mode get ranks: gpu2 1, 3")
    assert "--own-gpus" in text
    assert findings(second=partitioned()) == []
    assert lint(dataclasses.replace(scene(second=partitioned(1)), placed=True)) == ()


def test_an_interface_missing_on_one_node_is_reported_with_that_node():
    """It is the other node that everybody forgets."""
    second = dataclasses.replace(healthy(2), addresses=(Address("bond1", "10.77.0.2", 24, "global"),))

    assert "gpu2 has bond1" in one("", {"NCCL_SOCKET_IFNAME": "ens"}, second=second)


@pytest.mark.parametrize(
    ("change", "variable"),
    [
        ({"addresses": Unknown("timed out")}, {"NCCL_SOCKET_IFNAME": "ib0"}),
        ({"rdma": Unknown("timed out")}, {"NCCL_IB_HCA": "=mlx5_9", "NCCL_IB_GID_INDEX": "9"}),
    ],
)
def test_unknown_facts_cause_no_findings(change, variable):
    """A failed probe is no evidence; nor is a container with its own network."""
    texts = findings("", variable, second=dataclasses.replace(healthy(2), **change))

    assert texts
    assert all("gpu1" in text for text in texts)
    apart = dataclasses.replace(healthy(2), container=dataclasses.replace(healthy().container, network="bridge"))
    assert all("gpu1" in text for text in findings("", {"NCCL_SOCKET_IFNAME": "eth0"}, second=apart))
    assert findings("", {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_IB_GID_INDEX": "7"}, asked=False) == []


def test_disabling_available_rdma_is_reported():
    """The commonest copied variable."""
    assert "gpu1 has mlx5_0:1" in one("", {"NCCL_IB_DISABLE": "1"})


def test_a_card_name_that_is_a_prefix_of_another_is_reported():
    """mlx5_1 is mlx5_10 too."""
    both = RdmaStack((rdma_device("mlx5_1"), rdma_device("mlx5_10")), 2, (), "")
    second = dataclasses.replace(healthy(2), rdma=both)
    texts = findings("", {"NCCL_IB_HCA": "mlx5_1:1"}, second=second)

    assert any("on gpu2 also mlx5_10" in text and "NCCL_IB_HCA==mlx5_1:1" in text for text in texts)
    assert any("gpu1 has no mlx5_1, only mlx5_0" in text for text in texts)
    assert not any("matches more" in text for text in findings("", {"NCCL_IB_HCA": "=mlx5_1"}, second=second))


@pytest.mark.parametrize(
    ("index", "gids", "words"),
    [
        ("5", (RIGHT,), ["FAILS", "gpu2 mlx5_0:1 has 3"]),
        ("2", (Gid(2, RIGHT.gid, "IB/RoCE v1", "ens4"), RIGHT), ["that is IB/RoCE v1", "(here 3)"]),
        ("7", (RIGHT, Gid(7, f"{MAPPED}c0a8:0002", "RoCE v2", "ens4.5")), ["192.168.0.2 on ens4.5"]),
    ],
)
def test_a_wrong_gid_index_on_a_node_is_reported(index, gids, words):
    """Where there is nothing at that index the job fails; where it is another address it may."""
    texts = [text for text in findings("", {"NCCL_IB_GID_INDEX": index}, second=with_gids(*gids)) if "gpu2" in text]

    assert len(texts) == 1
    assert all(word in texts[0] for word in words), texts


def test_an_invalid_gid_index_fails():
    """NCCL would read it as 0."""
    assert one("", {"NCCL_IB_GID_INDEX": "three"}).startswith("FAILS NCCL_IB_GID_INDEX=three: this is no index")


def test_numeric_levels_are_reported():
    """2 is PXB in one version and PIX in another."""
    assert "Write LOC, PIX, PXB, PHB or SYS" in one("", {"NCCL_NET_GDR_LEVEL": "2"})


def test_a_fabric_missing_on_a_node_is_refused():
    """NCCL would go over TCP without a word."""
    none = dataclasses.replace(healthy(2), rdma=RdmaStack((), 0, (), ""))

    assert one(fabric="roce", second=none).startswith("FAILS --fabric roce: gpu2 cannot: it has tcp")
    assert findings(fabric="tcp") == []


def test_unusable_cards_are_reported():
    """The job would be slow without a visible reason."""
    down = dataclasses.replace(healthy(2), rdma=RdmaStack((rdma_device(state="DOWN"),), 1, (), ""))

    assert "gpu2 has RDMA cards and the job goes over TCP: mlx5_0; mlx5_0 port 1 is DOWN" in one(second=down)


def test_failures_come_first():
    """The refusal names it."""
    texts = findings("-np 17 -x NCCL_IB_DISABLE=1")

    assert [text.startswith("FAILS") for text in texts] == [True, False]
