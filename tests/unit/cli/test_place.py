"""``provision place`` as it is typed."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from provision.cli.main import main
from provision.errors import ConnectionFailed
from provision.facts import Unknown
from provision.facts.managed import Managed
from provision.facts.rdma import RdmaStack
from provision.launchers.placement_file import read_placement
from provision.model import Cluster
from provision.workflow import placement_candidates
from tests.unit.checks.conftest import gpu, healthy, linked, make_node

HEAVY = ("ansible", "ansible_runner", "paramiko", "fabric", "docker", "yaml", "jinja2", "provision.connectors")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
MESH = """\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tmlx5_1\tCPU Affinity
GPU0\t X \tNV1\tNV1\tNV2\tPIX\tPHB\t0-19
GPU1\tNV1\t X \tNV2\tNV1\tPIX\tPHB\t0-19
GPU2\tNV1\tNV2\t X \tNV2\tPHB\tPIX\t0-19
GPU3\tNV2\tNV1\tNV2\t X \tPHB\tPIX\t0-19
mlx5_0\tPIX\tPIX\tPHB\tPHB\t X \tPHB\t
mlx5_1\tPHB\tPHB\tPIX\tPIX\tPHB\t X \t

Legend:

  NV#  = Connection
  PIX  = Connection
"""
P2P = """Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1      2      3
     0 740.00  24.10  24.10  10.00
     1  24.10 740.00  48.20  24.10
     2  24.10  48.20 740.00  48.20
     3  10.00  24.10  48.20 740.00
"""


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    """Recorded outputs in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROVISION_INVENTORY", raising=False)
    (tmp_path / "quad.txt").write_text(MESH)
    (tmp_path / "cut.txt").write_text(MESH.splitlines()[0])
    (tmp_path / "p2p.txt").write_text(P2P)


@pytest.fixture
def place(capsys):
    """Run the verb; return exit code, stdout and stderr."""

    def run(*words):
        with pytest.raises(SystemExit) as stopped:
            main(["place", *words])
        said = capsys.readouterr()
        return stopped.value.code, said.out, said.err

    return run


V100 = "gpu=V100,nic_gbit=100,pcie_gen=3"


def test_a_job_is_placed_on_recorded_nodes(place):
    """Each worker has a node, GPUs and the cards near them; what is worth what stands in the score."""
    code, out, err = place("--gpus", "2", "--workers", "2", "--topo-file", f"n1=quad.txt,{V100}", "--json")
    document = json.loads(out)

    assert (code, err) == (0, "")
    assert (document["fits"], document["bus_bandwidth_gb_s"], document["warnings"]) == (True, 80.0, [])
    assert [(worker["node"], worker["gpus"]) for worker in document["workers"]] == [("n1", [0, 3]), ("n1", [1, 2])]
    assert document["workers"][0]["nics"] == ["mlx5_0", "mlx5_1"]
    assert document["score"]["nodes"] == 1


def test_assumptions_are_reported(place):
    document = json.loads(place("-g", "4", "--topo-file", "n1=quad.txt", "--json")[1])

    assert [any(figure in text for text in document["warnings"]) for figure in ("20 GB/s", "12 GB/s", "12.5 GB/s")] == [
        True,
        True,
        True,
    ]


def test_one_gpu_has_no_expected_bandwidth(place):
    document = json.loads(place("-g", "1", "--topo-file", f"n1=quad.txt,{V100}", "--json")[1])

    assert (document["bus_bandwidth_gb_s"], document["score"]["bandwidth_gb_s"]) == (None, None)


def test_insufficient_gpus_exit_with_1_and_the_missing_number(place):
    code, out, _ = place("-g", "2", "--workers", "2", "--topo-file", f"n1=quad.txt,{V100},busy=0", "--json")
    document = json.loads(out)

    assert (code, document["fits"], document["workers"], document["bus_bandwidth_gb_s"]) == (1, False, [], None)
    assert document["code"] == "placement.insufficient_gpus"
    assert document["params"]["free"] == [{"code": "placement.gpus_of_node", "params": {"name": "n1", "gpus": 3}}]


def test_bandwidth_between_nodes_is_that_of_the_cards(place):
    """Two nodes, two cards of 12 GB/s each."""
    words = [word for name in "ab" for word in ("--topo-file", f"{name}=quad.txt,{V100},leaf={name}")]
    document = json.loads(place("-g", "4", "--workers", "2", *words, "--json", "--explain")[1])

    assert (document["bus_bandwidth_gb_s"], document["score"]["cross_leaf_hops"]) == (24.0, 2)
    assert [node["leaf"] for node in document["nodes"]] == ["a", "b"]
    assert document["runner_up"] is None


def test_measurements_override_product_rates(place):
    """The two lanes between 0 and 3 carry little there; 2 and 3 leave a better pair than 1 and 2 do."""
    words = ("-g", "2", "--topo-file", f"n1=quad.txt,{V100}", "--p2p-matrix", "n1=p2p.txt", "--json")
    document = json.loads(place(*words)[1])

    assert (document["workers"][0]["gpus"], document["bus_bandwidth_gb_s"]) == ([2, 3], 48.2)


def test_explain_shows_the_criteria_and_the_runner_up(place):
    """In 80 columns, without colour."""
    _, out, _ = place("-g", "2", "--topo-file", f"n1=quad.txt,{V100}", "--explain")

    assert "next best: n1 GPUs 1,2" in out
    assert "decided by: names of the nodes, numbers of the GPUs" in out
    assert "expected bus bandwidth: 40.0 GB/s" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-g", "1", "--topo-file", "n1=none.txt"], "none.txt cannot be read: No such file"),
        (["-g", "1", "--topo-file", "n1=cut.txt"], "cut.txt: nvidia-smi topology matrix"),
        (["-g", "1", "--topo-file", "n1=quad.txt", "--topo-file", "n1=quad.txt"], "two --topo-file describe n1"),
        (["-g", "1", "--topo-file", "n1=quad.txt", "--limit", "n1"], "probes no node"),
        (["-g", "1", "--topo-file", "n1=quad.txt", "--p2p-matrix", "n2=p2p.txt"], "unknown node"),
        (["-g", "1", "--topo-file", "n1=quad.txt", "--p2p-matrix", "p2p.txt"], "not a node and a file"),
        (["-g", "1", "--topo-file", "n1=quad.txt", "--p2p-matrix", "n1=quad.txt"], "no bandwidths between GPUs"),
        (["-g", "1", "--gputopology", "--share"], "--gputopology and --share exclude each other"),
        (["-g", "0", "--topo-file", "n1=quad.txt"], "-g 0: must be at least 1"),
        (["--topo-file", "n1=quad.txt"], "--gpus"),
    ],
)
def test_invalid_requests_are_refused(place, words, said):
    """Exit 2, a sentence, no traceback."""
    code, _, err = place(*words)

    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_no_modules_for_connections_are_imported():
    """What talks to nodes costs time and is not needed."""
    words = ["place", "-g", "4", "--topo-file", f"n1=quad.txt,{V100}", "--json"]
    script = f"import sys; from provision.cli.main import main\ntry: main({words!r})\n"
    script += "except SystemExit: print(sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=True
    )

    assert json.loads(done.stdout)["fits"]
    assert [name for name in HEAVY if f"'{name}'" in done.stderr] == []


# The nodes of an inventory


@pytest.fixture
def probed(monkeypatch, place):
    """Run the verb on an inventory whose nodes are as said: name -> (variables, facts)."""

    def run(probed_nodes, *words):
        nodes = tuple(
            make_node(name, f"10.77.0.{i}", **some) for i, (name, (some, _)) in enumerate(probed_nodes.items(), 1)
        )
        monkeypatch.setattr("provision.cli.common.inventory_from", lambda *_: Path("hosts.yml"))
        monkeypatch.setattr("provision.inventory.load", lambda *_a, **_k: Cluster("c", Path("hosts.yml"), nodes))
        monkeypatch.setattr(
            placement_candidates,
            "probe",
            lambda chosen, **_: {node.name: probed_nodes[node.name][1] for node in chosen},
        )
        return place(*words)

    return run


def node(count=4, number=1, **changed):
    """Facts of a node with so many GPUs on PCIe, one card near the first two."""
    kinds = ("PIX", "PIX", "NODE", "NODE")[:count]
    gpus = tuple(gpu(index) for index in range(count))
    buses = tuple(f"0000:{index + 6:02x}:00.0" for index in range(count))
    facts = dataclasses.replace(healthy(number), topology=linked(*kinds), gpus=gpus, gpu_pci=buses, managed=Managed())
    return dataclasses.replace(facts, **changed)


def test_the_nodes_of_an_inventory_are_probed(probed):
    """Leaves come from the inventory, rates from the nodes: slots of the 4th generation, a card of 100 Gbit/s."""
    leaves = {"a": "l", "b": "m", "c": "l"}
    probed_nodes = {name: ({"cluster_leaf": leaf}, node(number=n)) for n, (name, leaf) in enumerate(leaves.items(), 1)}
    code, out, _ = probed(probed_nodes, "-g", "2", "--workers", "5", "--json", "--explain")
    document = json.loads(out)

    assert code == 0
    assert [entry["name"] for entry in document["nodes"]] == ["a", "c", "b"]
    assert (document["bus_bandwidth_gb_s"], document["score"]["cross_leaf_hops"]) == (12.5, 2)
    assert document["warnings"] == []


def test_modes_racks_and_domains_come_from_the_inventory(probed):
    probed_nodes = {
        "a": ({}, node()),
        "b": ({"cluster_gpu_schedule": "topology"}, node()),
        "c": ({"cluster_gpu_schedule": "topology"}, node()),
    }
    usual, wired = (
        json.loads(probed(probed_nodes, "-g", "4", *words, "--json")[1]) for words in ([], ["--gputopology"])
    )

    assert [usual["workers"][0]["node"], wired["workers"][0]["node"]] == ["a", "b"]


def test_without_modes_all_nodes_accept_every_job(probed):
    """An inventory that says nothing of modes needs nothing said for --gputopology."""
    document = json.loads(probed({"a": ({}, node())}, "-g", "4", "--gputopology", "--json")[1])

    assert document["workers"][0]["node"] == "a"


def test_each_rank_has_a_gpu_with_its_cpus_in_the_order_of_the_ring(probed, tmp_path):
    """`run --placement` binds by that."""
    _, out, _ = probed({"a": ({}, node())}, "-g", "2", "--workers", "2", "--json")
    (tmp_path / "p.json").write_text(out)
    worker = json.loads(out)["workers"][0]
    read = read_placement((tmp_path / "p.json").read_text())

    assert [rank["gpus"][0] for rank in worker["ranks"]] == worker["order"]
    assert worker["ranks"][0] == {"gpus": [0], "cpus": "0-15", "numa": 0}
    assert [rank.gpus for rank in read[0].ranks] == [("0",), ("1",), ("2",), ("3",)]
    assert (read[0].ranks[0].cpus, read[0].ranks[0].nics) == (tuple(range(16)), tuple(worker["nics"]))


def test_ignored_network_cards_are_reported(probed):
    """Else `none near` would contradict what topo shows; of what joins two nodes nothing can be said then."""
    probed_nodes = {name: ({}, node(rdma=RdmaStack((), 0, (), ""))) for name in "ab"}
    _, out, _ = probed(probed_nodes, "-g", "4", "--workers", "2")

    assert "expected bus bandwidth: unknown without network cards" in out
    assert "warning: a, b: none of its network cards counts: it has no RDMA device" in out


def test_cards_outside_the_configured_rails_are_not_used(probed):
    rails = [{"card": "mlx5_9", "subnet": "10.9.0.0/16"}]
    probed_nodes = {name: ({"cluster_rails": rails}, node()) for name in "ab"}
    document = json.loads(probed(probed_nodes, "-g", "4", "--workers", "2", "--json")[1])

    assert (document["bus_bandwidth_gb_s"], document["workers"][0]["nics"]) == (0.0, [])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"managed": Managed(jobs=("process 7 (python3 of x) holds /dev/nvidia0",))}, "count as busy: process 7"),
        ({"managed": Unknown("hung")}, "what runs there is not known: hung"),
    ],
)
def test_a_node_in_use_or_with_unknown_processes_is_busy(probed, changed, said):
    """Only one of the job's GPUs is known, so none of the node's is given away."""
    code, out, _ = probed({"a": ({}, node(**changed))}, "-g", "1", "--json")
    document = json.loads(out)

    assert (code, document["fits"]) == (1, False)
    assert said in document["warnings"][0]


@pytest.mark.parametrize(
    ("facts", "code", "said"),
    [
        (ConnectionFailed("no route to host", node="b"), 1, "no route to host"),
        (node(topology=Unknown("hung: nvidia-smi topo -m")), 0, "how its GPUs are linked is not known"),
        (node(gpus=(gpu(),)), 0, "does not see all GPUs"),
        (node(0, gpus=(), gpu_pci=()), 0, "it has no GPU"),
    ],
    ids=["unreachable", "no matrix", "a GPU is lost", "no GPU"],
)
def test_a_node_that_cannot_run_jobs_is_excluded_with_the_reason(probed, facts, code, said):
    """The others serve; a node that was not reached is exit 1 all the same."""
    ended, out, err = probed({"a": ({}, node()), "b": ({}, facts)}, "-g", "4", "--json")
    document = json.loads(out)

    assert (ended, document["workers"][0]["node"]) == (code, "a")
    assert said in document["left_out"][0]["reason"]
    assert "excluded: b: " in err


def test_a_gpu_in_mig_mode_is_not_used_for_jobs_of_whole_gpus(probed):
    parted = node(gpus=tuple(gpu(index, mig=index == 0) for index in range(4)))
    document = json.loads(probed({"a": ({}, parted)}, "-g", "4", "--json")[1])

    assert not document["fits"]
    assert [part["code"] for part in document["params"]["excluded"]] == ["placement.mig"]


def test_a_shared_gpu_in_mig_mode_is_offered_by_the_uuids_of_its_instances(probed):
    """A process can have no other part of it."""
    cut = dataclasses.replace(gpu(0, mig=True), instances=("MIG-1", "MIG-2"))
    parted = node(gpus=(cut, *(gpu(index) for index in range(1, 4))))
    nodes = {"a": ({"cluster_gpu_schedule": "share"}, parted)}
    _, out, _ = probed(nodes, "-g", "1", "--share")
    (worker,) = json.loads(probed(nodes, "-g", "1", "--share", "--json")[1])["workers"]

    assert worker["mig_instances"] == {"0": ["MIG-1", "MIG-2"]}
    assert "give the job the UUID of an instance instead: MIG-1 MIG-2" in " ".join(out.split())
