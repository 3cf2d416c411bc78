"""Nodes with different names of their data interfaces: settings of `run` and `submit` for Open MPI and its ranks."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from dataclasses import replace

import pytest

from provision.batch.ranks import Place
from provision.commands.mpirun_words import parse_line
from provision.jobs import JobRequest, prepare_offline
from provision.jobs.cluster_snapshot import ClusterSnapshot
from provision.jobs.engines.common.dry_run import dry_run
from provision.jobs.engines.common.placement import PlacementResult
from provision.jobs.preflight import Container
from provision.launchers import HostEntry
from provision.model.job import JobSpec, Kind
from provision.profiles import NodeNetwork
from provision.testing import make_node

NETWORKS = {
    "a": NodeNetwork("a", "tcp", gpus=8, interface="eth1", network="10.1.0.0/24"),
    "b": NodeNetwork("b", "tcp", gpus=8, interface="eth3", network="10.1.0.0/24"),
}
ROCE = {
    "a": replace(NETWORKS["a"], fabric="roce", hcas=("mlx5_0:1",), gids={"mlx5_0:1": 3}),
    "b": replace(NETWORKS["b"], fabric="roce", hcas=("mlx5_2:1",), gids={"mlx5_2:1": 5}),
}
SAME = {**NETWORKS, "b": replace(NETWORKS["b"], interface="eth1")}
TYPED = ("mpirun", "-np", "16", "train")


def started(version=4, networks=None, **more):
    """Return the processes that `run` starts on two nodes."""
    request = JobRequest(
        command=more.pop("command", ("train",)),
        entries=(HostEntry("a", "10.1.0.1", 8, "gpu"), HostEntry("b", "10.1.0.2", 8, "gpu")),
        nodes={"a": make_node("a"), "b": make_node("b")},
        head="a",
        job="abc",
        node_networks=NETWORKS if networks is None else networks,
        **more,
    )
    return prepare_offline(request, Container(version, "mpirun", root=True, library_path=False))


def parameters(plan):
    """Return the MCA parameters of a command line."""
    return {setting.name: setting.value for setting in plan.settings if setting.flag in {"--mca", "--prtemca"}}


def by_node(plan):
    """Return the variables of each node's ranks that are not on the command line."""
    document = json.loads(zlib.decompress(b64decode(plan.environment["PROVISION_RANKS"])))
    return {node["name"]: node["environment"] for node in document["nodes"]}


def submitted(networks, **more):
    """Return environment and command of each instance of an mpi job of two nodes that `submit` would start."""
    places = PlacementResult((Place("a", "10.1.0.1", (0,), ("GPU-0",)), Place("b", "10.1.0.2", (0,), ("GPU-1",))))
    snapshot = ClusterSnapshot(networks=networks, interfaces={name: one.interface for name, one in networks.items()})
    options = {"image": "train:1", "gpus": 1, "workers": 2, "launcher": "mpirun", **more}
    plan = dry_run(JobSpec("j", Kind.MPI, ("train", "x"), **options), places, snapshot)
    (launcher,) = [name for name in plan.environment if "launcher" in name]
    (worker,) = [name for name in plan.environment if "worker" in name]
    return plan.environment[launcher], plan.environment[worker], plan.commands[launcher]


def passed_on(words):
    """Return the variables that mpirun passes to every rank with its own value."""
    return {words[index + 1] for index, word in enumerate(words) if word == "-x"}


def test_open_mpi_4_gets_the_network_if_interface_names_differ():
    """Open MPI 4 needs every listed interface on each node; a network fits all nodes."""
    values = parameters(started())

    assert values["btl_tcp_if_include"] == values["oob_tcp_if_include"] == "10.1.0.0/24"


def test_open_mpi_5_gets_the_network_for_ranks_and_all_names_for_daemons():
    """PRRTE ignores missing names, and does not accept a network."""
    values = parameters(started(5))

    assert values["btl_tcp_if_include"] == "10.1.0.0/24"
    assert values["prte_if_include"] == "eth1,eth3"


@pytest.mark.parametrize("version", [4, 5])
def test_equal_interface_names_are_used_as_they_are(version):
    values = parameters(started(version, SAME))

    assert values["btl_tcp_if_include"] == "eth1"
    assert values["oob_tcp_if_include" if version == 4 else "prte_if_include"] == "eth1"


def test_open_mpi_chooses_the_interface_if_the_network_is_unknown():
    """A name that one of the nodes lacks would disconnect that node."""
    unknown = {**NETWORKS, "b": replace(NETWORKS["b"], network="")}

    assert "btl_tcp_if_include" not in parameters(started(4, unknown))
    assert "btl_tcp_if_include" not in parameters(started(5, unknown))


@pytest.mark.parametrize(
    ("version", "control", "value"),
    [(4, "OMPI_MCA_oob_tcp_if_include", "10.1.0.0/24"), (5, "PRTE_MCA_prte_if_include", "eth1,eth3")],
)
def test_a_command_line_of_the_user_gets_the_network_from_its_environment(version, control, value):
    """A command line without interfaces reaches all nodes."""
    values = started(version, command=("train",), line=parse_line(TYPED)).environment

    assert values["OMPI_MCA_btl_tcp_if_include"] == "10.1.0.0/24"
    assert values[control] == value


def test_ranks_of_run_get_the_interface_cards_and_gid_index_of_their_own_node():
    """The common command line has no value of one node."""
    plan = started(networks=ROCE)
    names = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX")

    assert {node: tuple(values[name] for name in names) for node, values in by_node(plan).items()} == {
        "a": ("=eth1", "=mlx5_0:1", "3"),
        "b": ("=eth3", "=mlx5_2:1", "5"),
    }
    assert not any(name in word for word in plan.argv for name in names)


def test_submitted_ranks_get_the_values_of_their_own_node():
    """`mpirun -x NAME` would give the first node's interface, cards and GID index to the ranks of all nodes."""
    first, second, words = submitted(ROCE)

    assert (first["NCCL_SOCKET_IFNAME"], second["NCCL_SOCKET_IFNAME"]) == ("=eth1", "=eth3")
    assert (first["NCCL_IB_GID_INDEX"], second["NCCL_IB_GID_INDEX"]) == ("3", "5")
    assert not passed_on(words) & {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"}
    assert {"NCCL_DEBUG", "NCCL_IB_DISABLE"} <= passed_on(words)


def test_a_value_of_the_user_reaches_all_submitted_ranks():
    """It overrides the values of the nodes."""
    first, second, words = submitted(ROCE, env={"NCCL_SOCKET_IFNAME": "bond0"})

    assert first["NCCL_SOCKET_IFNAME"] == second["NCCL_SOCKET_IFNAME"] == "bond0"
    assert "NCCL_SOCKET_IFNAME" in passed_on(words)


def test_a_submitted_launcher_gets_the_network_if_interface_names_differ():
    """Versions 4 and 5 read different variables; a variable that both read has to fit both."""
    first, _, _ = submitted(NETWORKS)
    same, _, _ = submitted(SAME)

    assert first["OMPI_MCA_btl_tcp_if_include"] == "10.1.0.0/24"
    assert first["PRTE_MCA_prte_if_include"] == "eth1,eth3"
    assert same["OMPI_MCA_btl_tcp_if_include"] == same["PRTE_MCA_prte_if_include"] == "eth1"
