"""Data volumes as checks of nodes and of the cluster."""

from __future__ import annotations

from pathlib import Path

from provision.batch.data import DataFinding
from provision.checks import judge, judge_cluster
from provision.model import CheckStatus, Cluster
from provision.report.reasons import remedy
from tests.support.reasons import shown
from tests.unit.checks.conftest import healthy, make_node

GONE = DataFinding("imagenet", "gpu2", "fail", "/mnt/imagenet is not mounted", "mount it there")
LOCAL = DataFinding("scratch", "", "warn", "/scratch is on each node's own disk")


def judged(data):
    """The results of two nodes, and of the cluster, by id."""
    nodes = tuple(make_node(f"gpu{n}", f"10.77.0.{n}") for n in (1, 2))
    cluster = Cluster("test", Path("hosts.yml"), nodes)
    facts = {node.name: healthy(number) for number, node in enumerate(nodes, 1)}
    of_nodes = [{r.id: r for r in judge(node, facts[node.name], cluster, data=data)} for node in nodes]
    return of_nodes, {r.id: r for r in judge_cluster(cluster, nodes, facts, data=data)}


def test_a_volume_fails_on_nodes_without_it():
    """The others pass; what concerns all nodes is the cluster's."""
    (first, second), cluster = judged([GONE, LOCAL])

    assert first["node.data"].status is CheckStatus.PASS
    assert second["node.data"].status is CheckStatus.FAIL
    assert "node.data.findings: node.data.problem imagenet /mnt/imagenet is not mounted mount it there" in shown(
        second["node.data"].reason
    )
    assert remedy(second["node.data"].reason, "gpu1") == "mount it there"
    assert cluster["cluster.data"].status is CheckStatus.WARN
    assert "own disk" in shown(cluster["cluster.data"].reason)


def test_without_volumes_there_is_no_result():
    """An inventory without data has no result about it."""
    (first, _), cluster = judged(None)

    assert "node.data" not in first
    assert "cluster.data" not in cluster
