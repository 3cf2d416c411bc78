"""``verify --level full --collective``: a real all-reduce between containers of nodes with SIMULATED GPUs."""

from __future__ import annotations

import pytest

from tests.integration.conftest import LAB
from tests.support.command import eventually


@pytest.fixture
def collective(provision, cluster):
    """Run the verb; return its exit code and document."""
    assert cluster["nodes"]

    def run(*words):
        done = provision("verify", "--lab", LAB, "--level", "full", "--collective", "--json", *words, timeout=600)
        return done.code, done.document, {check["id"]: check for check in done.document["cluster"]}

    return run


def held(provision):
    """The GPUs of the lab that a job holds."""
    nodes = provision.ok("top", "node", "--lab", LAB, "-o", "json").document["nodes"]
    return [gpu for node in nodes for gpu in node["gpus"] if gpu["job"]]


def test_all_idle_nodes_are_measured_and_simulated_gpus_are_marked(provision, collective):
    """It counts as a measurement where no node has an RDMA device; every lease is released."""
    code, document, checks = collective()
    collective_result = document["collective"]

    assert code == 0, checks
    assert (collective_result["program"], collective_result["memory"], collective_result["ranks"]) == (
        "mpi4py",
        "host",
        2,
    )
    assert collective_result["nodes"] == [f"{LAB}-1", f"{LAB}-2"]
    assert collective_result["bus_bandwidth_gb_s"] > 0
    assert (collective_result["wrong"], collective_result["simulated"], collective_result["left_out"]) == (0, True, [])
    assert (checks["cluster.collective"]["status"], checks["cluster.collective"]["simulated"]) == ("pass", True)
    assert checks["rdma_stack.bandwidth"]["status"] == "skip"
    assert eventually(lambda: not held(provision), seconds=30, what="the leases are released")


def test_a_busy_node_is_excluded(collective, jobs):
    """A batch job that holds one GPU keeps its node to itself; the other node measures alone."""
    node = f"{LAB}-2"
    jobs.submit("run", "keeps", "--gpus=1", f"--nodes={node}", "exec sleep 600")
    try:
        jobs.until("keeps", "RUNNING")
        code, document, checks = collective()
        status = jobs.get("keeps")["status"]
    finally:
        jobs.ok("delete", "keeps")
    collective_result = document["collective"]

    assert collective_result["nodes"] == [f"{LAB}-1"]
    assert [one["node"] for one in collective_result["left_out"]] == [node]
    assert (code, checks["cluster.collective"]["status"], status) == (0, "warn", "RUNNING")


def test_collective_requires_level_full(provision, cluster):
    """It puts load on the network, as the other measurements of that level do."""
    assert cluster["nodes"]
    assert provision("verify", "--lab", LAB, "--collective").code == 2
