"""How an all-reduce over all nodes is judged."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from provision.checks import judge_cluster
from provision.model import Bandwidth, CheckStatus, Cluster, Collective, Verification
from provision.report.reasons import remedy
from provision.report.verify_report import as_document, as_text
from tests.support.reasons import shown
from tests.unit.checks.conftest import healthy, make_node

GOOD = Collective(
    program="nccl-tests",
    memory="gpu",
    nodes=("gpu1", "gpu2"),
    ranks=16,
    size_bytes=1 << 31,
    bus_bandwidth=90.0,
    predicted=100.0,
    minimum=0.75,
)


def judged(check=None, bandwidth=None, **changes):
    """The results of the cluster by id."""
    nodes = tuple(make_node(f"gpu{n}", f"10.77.0.{n}") for n in (1, 2))
    cluster = Cluster("test", Path("hosts.yml"), nodes)
    facts = {node.name: healthy(number) for number, node in enumerate(nodes, 1)}
    collective = dataclasses.replace(check or GOOD, **changes)
    results = judge_cluster(cluster, nodes, facts, None, bandwidth or Bandwidth(), collective)
    return {result.id: result for result in results}


def verdict(**changes):
    """The result of the all-reduce."""
    return judged(**changes)["cluster.collective"]


def test_bandwidth_above_the_required_fraction_passes():
    """Measured and predicted bandwidth are in the reason."""
    check = verdict()

    assert check.status is CheckStatus.PASS
    assert "cluster.collective.ok" in shown(check.reason)
    assert "cluster.collective.ok" in shown(check.reason)


@pytest.mark.parametrize(
    ("rate", "minimum", "status"), [(74.9, 0.75, "fail"), (75.0, 0.75, "pass"), (10.0, 0.0, "pass")]
)
def test_the_required_fraction_is_a_variable_of_the_inventory(rate, minimum, status):
    """0 requires none."""
    assert verdict(bus_bandwidth=rate, minimum=minimum).status == status


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        (
            {"bus_bandwidth": None, "reason": "gpu1: GPU-0 is held by the job mnist"},
            "fail",
            "cluster.collective.not_measured: gpu1: GPU-0 is held by the job mnist",
        ),
        ({"wrong": 3}, "fail", "cluster.collective.wrong"),
        ({"left_out": {"gpu3": "busy: mnist"}}, "warn", "cluster.collective.some_nodes"),
        ({"predicted": None, "not_predicted": "a GPU is in MIG mode"}, "warn", "MIG"),
        ({"memory": "host", "program": "mpi4py", "predicted": None}, "pass", "cluster.collective.ok"),
        (
            {"memory": "host", "program": "mpi4py", "predicted": None, "simulated": True},
            "pass",
            "cluster.collective.ok",
        ),
    ],
)
def test_low_bandwidth_fails_and_simulated_gpus_are_marked(changes, status, said):
    """Simulated GPUs are marked and not compared."""
    check = verdict(**changes)

    assert check.status == status
    assert said in shown(check.reason)
    assert check.simulated is changes.get("simulated", False)
    assert remedy(check.reason, "gpu1") or status == "pass"


def test_a_collective_measurement_satisfies_level_full():
    """Without RDMA devices no pair can be measured, and that fails where nothing else was."""
    nothing = Bandwidth((), (), {"gpu1": "it has no RDMA device", "gpu2": "it has no RDMA device"})

    assert judged(bandwidth=nothing)["rdma_stack.bandwidth"].status is CheckStatus.SKIP
    assert judged(bandwidth=nothing, bus_bandwidth=None)["rdma_stack.bandwidth"].status is CheckStatus.FAIL


def test_broken_ports_fail_despite_a_collective_measurement():
    """They fail in any case."""
    broken = Bandwidth((), (), {}, {"gpu1": "mlx5_0 is DOWN"})

    assert judged(bandwidth=broken)["rdma_stack.bandwidth"].status is CheckStatus.FAIL


def test_collective_results_are_shown_as_text_and_json():
    """Also where every check passed."""
    shown = Verification((), tuple(judged().values()), None, GOOD)
    text, document = as_text(shown), as_document(shown)["collective"]

    assert "90% of the predicted 100" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    assert (document["bus_bandwidth_gb_s"], document["predicted_gb_s"], document["fraction"]) == (90.0, 100.0, 0.9)
