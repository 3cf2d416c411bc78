"""The probe of the nodes before jobs are placed, started in the background."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from provision.errors import NodeError
from provision.facts import ALL_FACTS
from provision.jobs import cluster_snapshot
from provision.jobs.cluster_snapshot import BackgroundProbe, ClusterSnapshot
from provision.model import Cluster
from provision.model.reason import reason
from provision.workflow import probe_snapshot


class ClusterProbe:
    """Probes when the test permits it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may, self.probes, self.error = threading.Event(), 0, error

    def probe(self, cluster: Cluster, names: Sequence[str]) -> ClusterSnapshot:
        assert [node.name for node in cluster.nodes] == list(names)
        self.probes += 1
        assert self.may.wait(5)
        if self.error:
            raise self.error
        return ClusterSnapshot(left_out={"a": reason("look", number=self.probes)})


CLUSTER = Cluster("x", Path("x"), ())


def test_a_background_probe_is_used() -> None:
    """The caller continues meanwhile."""
    cluster_probe = ClusterProbe()
    background_probe = BackgroundProbe(cluster_probe, CLUSTER)
    background_probe.begin()
    cluster_probe.may.set()

    assert (
        background_probe.snapshot().left_out == background_probe.snapshot().left_out == {"a": reason("look", number=1)}
    )


def test_nodes_are_probed_only_if_a_job_is_to_be_placed() -> None:
    cluster_probe = ClusterProbe()
    background_probe, before = BackgroundProbe(cluster_probe, CLUSTER), cluster_probe.probes
    cluster_probe.may.set()

    assert (before, background_probe.snapshot().left_out) == (0, {"a": reason("look", number=1)})


def test_an_old_background_probe_is_repeated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another command may have held the queue for a minute; one scheduling pass uses one probe."""
    cluster_probe = ClusterProbe()
    cluster_probe.may.set()
    monkeypatch.setattr(cluster_snapshot, "FRESH_SECONDS", 0.0)
    background_probe = BackgroundProbe(cluster_probe, CLUSTER)
    background_probe.begin()

    assert (
        background_probe.snapshot().left_out == background_probe.snapshot().left_out == {"a": reason("look", number=2)}
    )


def test_facts_that_placement_does_not_use_exist() -> None:
    """A name that is not a fact would exclude nothing."""
    assert set(probe_snapshot._UNUSED) < {fact.name for fact in ALL_FACTS}


def test_an_error_of_the_background_probe_is_raised_when_its_result_is_read() -> None:
    """It is not lost in the thread."""
    cluster_probe = ClusterProbe(NodeError("no"))
    cluster_probe.may.set()
    background_probe = BackgroundProbe(cluster_probe, CLUSTER)
    background_probe.begin()

    with pytest.raises(NodeError, match="no"):
        background_probe.snapshot()
