"""The engine's look at the nodes as places for jobs, begun beside other work."""

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
from provision.workflow import cluster_snapshot as probe_snapshot


class ClusterProbe:
    """Looks when it may."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may, self.probes, self.error = threading.Event(), 0, error

    def probe(self, cluster: Cluster, names: Sequence[str]) -> ClusterSnapshot:
        assert [node.name for node in cluster.nodes] == list(names)
        self.probes += 1
        assert self.may.wait(5)
        if self.error:
            raise self.error
        return ClusterSnapshot(left_out={"a": f"look {self.probes}"})


CLUSTER = Cluster("x", Path("x"), ())


def test_a_background_probe_is_used() -> None:
    """Whoever begins it goes on meanwhile."""
    cluster_probe = ClusterProbe()
    background_probe = BackgroundProbe(cluster_probe, CLUSTER)
    background_probe.begin()
    cluster_probe.may.set()

    assert background_probe.snapshot().left_out == background_probe.snapshot().left_out == {"a": "look 1"}


def test_without_a_job_to_place_there_is_no_probe() -> None:
    """Without a job to place there is no look; with one there is."""
    cluster_probe = ClusterProbe()
    background_probe, before = BackgroundProbe(cluster_probe, CLUSTER), cluster_probe.probes
    cluster_probe.may.set()

    assert (before, background_probe.snapshot().left_out) == (0, {"a": "look 1"})


def test_what_was_seen_before_a_long_wait_is_looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another command may have held the queue for a minute; one pass rests on one look."""
    cluster_probe = ClusterProbe()
    cluster_probe.may.set()
    monkeypatch.setattr(cluster_snapshot, "FRESH_SECONDS", 0.0)
    background_probe = BackgroundProbe(cluster_probe, CLUSTER)
    background_probe.begin()

    assert background_probe.snapshot().left_out == background_probe.snapshot().left_out == {"a": "look 2"}


def test_what_places_are_not_chosen_by_is_not_asked_of_nodes() -> None:
    """Each name is a fact's: one that is not would leave nothing out."""
    assert set(probe_snapshot._UNUSED) < {fact.name for fact in ALL_FACTS}


def test_what_goes_wrong_is_said_where_it_is_needed() -> None:
    """Not in a thread that nobody hears."""
    cluster_probe = ClusterProbe(NodeError("no"))
    cluster_probe.may.set()
    background_probe = BackgroundProbe(cluster_probe, CLUSTER)
    background_probe.begin()

    with pytest.raises(NodeError, match="no"):
        background_probe.snapshot()
