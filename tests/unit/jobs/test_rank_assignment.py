"""The assignment of ranks: a placement, nodes that differ, and the resulting command line."""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib

import pytest

from provision.commands.mpirun_words import parse_line
from provision.errors import LaunchError, UsageError
from provision.facts.network import Listening
from provision.jobs.line import launch_line
from provision.jobs.preflight import Container
from provision.jobs.rank_assignment import placed_entries, with_uuids
from provision.jobs.request import JobRequest
from provision.jobs.running import _plan, prepare_offline
from provision.launchers import HostEntry
from provision.model import NodePlacement, RankPlacement, Secret
from provision.profiles import NodeNetwork
from provision.testing import make_node
from tests.unit.checks.conftest import gpu, healthy

ENTRIES = (HostEntry("gpu1", "10.77.0.1", 2, "gpu"), HostEntry("gpu2", "10.77.0.2", 2, "gpu"))
LOOKED_AT = Container(4, "/usr/bin/mpirun", root=True, library_path=False)
GPU1 = NodeNetwork("gpu1", "roce", gdr=True, interface="bond0", hcas=("mlx5_0:1",), gids={"mlx5_0:1": 3}, nccl="2.9.9")
GPU2 = dataclasses.replace(GPU1, node="gpu2", gids={"mlx5_0:1": 5})
PLACEMENT = (
    NodePlacement("gpu2", ranks=(RankPlacement(("1",), ("mlx5_1:1",), (4, 5)), RankPlacement(("0",), ("mlx5_0:1",)))),
    NodePlacement("gpu1", ranks=(RankPlacement(("0",), ("mlx5_0:1",)),)),
)


def job(**changes):
    """A job of four ranks on two equal nodes."""
    known = {"gpu1": GPU1, "gpu2": dataclasses.replace(GPU1, node="gpu2")}
    usual = JobRequest(
        ("python3", "train.py"),
        ENTRIES,
        {n: make_node(n) for n in known},
        "gpu1",
        node_networks=known,
        job="0000000004d2",
    )
    return dataclasses.replace(usual, **changes)


def line(request, ranks=4, used=None):
    """The command line, and the plan for the ranks."""
    made = launch_line(request, LOOKED_AT, ranks, used or request.entries)
    packed = made.environment.get("PROVISION_RANKS")
    return made, json.loads(zlib.decompress(base64.b64decode(packed))) if packed else None


def test_on_equal_nodes_the_program_is_started_directly():
    """The image needs no python3 then."""
    made, plan = line(job())

    assert plan is None
    assert made.argv[-3:] == ["NCCL_IB_GID_INDEX=3", "python3", "train.py"]
    assert not made.needs_python


def test_a_variable_with_different_values_is_in_the_plan_by_node():
    """The command line contains neither value; it ends with the words of the program."""
    made, plan = line(job(node_networks={"gpu1": GPU1, "gpu2": GPU2}))

    assert [node["environment"] for node in plan["nodes"]] == [{"NCCL_IB_GID_INDEX": "3"}, {"NCCL_IB_GID_INDEX": "5"}]
    assert [len(node["ranks"]) for node in plan["nodes"]] == [2, 2]
    assert not [word for word in made.argv if "GID_INDEX" in word]
    assert made.argv[-6:-2] == ["python3", "-I", "-c", made.argv[-3]]
    assert made.argv[-8:-6] == ["-x", "PROVISION_RANKS"]
    assert (plan["mode"], plan["master"], plan["keep"]) == ("rank", None, [])


def test_a_value_of_the_user_is_for_all_nodes():
    """Then the nodes do not differ."""
    made, plan = line(job(node_networks={"gpu1": GPU1, "gpu2": GPU2}, environment={"NCCL_IB_GID_INDEX": Secret("4")}))

    assert plan is None
    assert "NCCL_IB_GID_INDEX" in made.argv


def test_a_container_without_python_is_reported_before_the_start():
    """Only if python3 is needed."""
    different = job(node_networks={"gpu1": GPU1, "gpu2": GPU2})
    with pytest.raises(LaunchError, match=r"no python3.*\(on gpu2\)"):
        _plan(different, LOOKED_AT, 4, ENTRIES, ["gpu2"])

    assert _plan(job(), LOOKED_AT, 4, ENTRIES, ["gpu2"]).argv


def test_a_placement_defines_nodes_order_and_ranks():
    """With one slot for each of its ranks."""
    entries = placed_entries(ENTRIES, PLACEMENT)

    assert [(entry.name, entry.slots) for entry in entries] == [("gpu2", 2), ("gpu1", 1)]
    _, plan = line(job(entries=tuple(entries), placement=PLACEMENT), 3)
    assert plan["nodes"][0]["ranks"] == [
        {"gpus": ["1"], "nics": ["mlx5_1:1"], "cpus": [4, 5]},
        {"gpus": ["0"], "nics": ["mlx5_0:1"]},
    ]
    assert [node["environment"] for node in plan["nodes"]] == [{}, {}]


def test_the_cards_of_a_placement_override_those_of_the_node():
    """The explanation names the placement as their source."""
    request = job(entries=tuple(placed_entries(ENTRIES, PLACEMENT)), placement=PLACEMENT)
    settings = {setting.name: setting for setting in line(request, 3)[0].settings}

    assert settings["NCCL_IB_HCA"].nodes == {"gpu2": "=mlx5_1:1,mlx5_0:1", "gpu1": "=mlx5_0:1"}
    assert settings["CUDA_VISIBLE_DEVICES"].nodes == {"gpu2": "1,0", "gpu1": "0"}
    assert settings["CUDA_VISIBLE_DEVICES"].source == "placement"


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ([NodePlacement("gpu9", ranks=(RankPlacement(),))], "it cannot take ranks"),
        ([NodePlacement("gpu1", ranks=(RankPlacement(),) * 3)], "it has 2 slots"),
        ([NodePlacement("gpu1")], "has no ranks"),
    ],
)
def test_a_placement_that_no_longer_fits_is_refused(placement, said):
    """A node may have failed since it was made."""
    with pytest.raises(LaunchError, match=said) as caught:
        placed_entries(ENTRIES, placement)

    assert "provision place" in caught.value.remedy


def test_gpus_are_named_by_uuid_on_known_nodes():
    """A container may number them differently; an invalid index is refused."""
    facts = {"gpu2": dataclasses.replace(healthy(), gpus=(gpu(0), gpu(1)))}
    placement = with_uuids(PLACEMENT, facts)

    assert [rank.gpus for node in placement for rank in node.ranks] == [("GPU-1",), ("GPU-0",), ("0",)]
    with pytest.raises(UsageError, match="names GPU 7 of gpu2, which has 0, 1"):
        with_uuids([NodePlacement("gpu2", ranks=(RankPlacement(("7",)),))], facts)


def test_a_gpu_in_mig_mode_is_named_by_the_uuid_of_an_instance():
    """Its own number or UUID would give every rank the first instance, or none; the error has a remedy."""
    cut = dataclasses.replace(gpu(1), health=dataclasses.replace(gpu(1).health, mig=True))
    facts = {"gpu2": dataclasses.replace(healthy(), gpus=(gpu(0), cut))}
    named = [NodePlacement("gpu2", ranks=(RankPlacement(("0",)), RankPlacement(("MIG-5c3e",))))]

    assert [rank.gpus for node in with_uuids(named, facts) for rank in node.ranks] == [("GPU-0",), ("MIG-5c3e",)]
    for whole in ("1", "GPU-1"):
        with pytest.raises(UsageError, match=f"names GPU {whole} of gpu2, which is in MIG mode") as refused:
            with_uuids([NodePlacement("gpu2", ranks=(RankPlacement((whole,)),))], facts)
        assert "nvidia-smi -L" in refused.value.remedy


@pytest.mark.parametrize(
    ("launcher", "ranks", "words"),
    [("python", "4", ["python3", "train.py"]), ("torchrun", "2", ["torchrun", "train.py"])],
)
def test_launchers_of_torch_get_a_rendezvous_address(launcher, ranks, words):
    """The first node's data address, and a free port; torchrun is one process on each node."""
    facts = {"gpu1": dataclasses.replace(healthy(), listening=(Listening("", 21234),))}
    made, plan = line(job(launcher=launcher, facts=facts, command=tuple(words[1:] if ranks == "2" else words)))

    assert plan["master"] == {"address": "10.77.0.1", "port": 21235}
    assert plan["mode"] == ("node" if launcher == "torchrun" else "rank")
    assert made.argv[made.argv.index("-np") + 1] == ranks
    assert ("ppr:1:node" in made.argv) is (launcher == "torchrun")
    assert made.argv[-len(words) :] == words


def test_jobs_begin_the_search_for_a_port_at_different_numbers():
    """Two simultaneous jobs do not choose the same port."""
    facts = {"gpu1": healthy()}
    ports = {line(job(launcher="python", facts=facts, job=f"{i:012x}"))[1]["master"]["port"] for i in range(50)}

    assert len(ports) == 50
    assert all(20000 <= port < 32768 for port in ports)


def typed(*words):
    """The plan for an mpirun command of the user."""
    own = parse_line(["mpirun", *words])
    return prepare_offline(job(line=own, command=own.command), LOOKED_AT)


def test_an_mpirun_command_of_the_user_runs_on_its_hosts():
    """In its order and with its slots: one rank on each of two hosts is not two on the first."""
    assert typed("-np", "2", "-H", "gpu2:1,gpu1:1", "prog").used == ("gpu2", "gpu1")
    assert typed("-H", "gpu2:2", "prog").used == ("gpu2",)
    assert typed("-np", "2", "prog").used == ("gpu1",)


def test_an_mpirun_command_of_the_user_gets_the_network_from_its_environment():
    """Its own interface options stay: Open MPI does not start with both include and exclude."""
    plain = typed("-np", "2", "prog").environment
    own = typed("--mca", "btl_tcp_if_exclude", "lo", "prog").environment

    assert plain["OMPI_MCA_plm_rsh_agent"].startswith("ssh -F ")
    assert plain["OMPI_MCA_btl_tcp_if_include"] == plain["OMPI_MCA_oob_tcp_if_include"] == "bond0"
    assert not [name for name in own if "_if_" in name]
