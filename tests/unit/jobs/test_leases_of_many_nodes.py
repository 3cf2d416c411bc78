"""Leases of a job on many nodes: all at once, or none. The nodes are STAND-INS that answer each request."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

from provision.batch.ranks import Place, assignments_of
from provision.jobs import attempt_start
from provision.jobs.attempt import Attempt
from provision.jobs.cluster_snapshot import ClusterSnapshot
from provision.jobs.connections import Connections
from provision.model import CommandResult
from provision.model.job import JobSpec, Kind
from provision.model.job_requests import Secrets

NODES = ("gpu1", "gpu2", "gpu3", "gpu4")
TAKEN = {"GPU-x": {"job": "other", "id": "o", "attempt": 1, "instance": "", "time": 1.0}}


class StandIn:
    """Leases GPUs when all nodes have been asked, or refuses to."""

    agent = True

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name, self._cluster = name, cluster

    def run(self, _command: str, *, stdin: bytes, **_options: Any) -> CommandResult:
        request = json.loads(stdin)
        if request["do"] == "release":
            self._cluster.leased.discard(self.name)
            return CommandResult("{}", "", 0)
        self._cluster.asked.wait(timeout=30)
        if self.name in self._cluster.busy:
            return CommandResult(json.dumps({"taken": TAKEN}), "", 0)
        self._cluster.leased.add(self.name)
        return CommandResult('{"taken": {}}', "", 0)

    def close(self) -> None:
        """Do nothing."""


class Cluster:
    """The nodes that have leased their GPUs."""

    def __init__(self, *busy: str) -> None:
        self.busy, self.leased = set(busy), set[str]()
        self.asked = threading.Barrier(len(NODES))

    def take(self) -> Any:
        places = [Place(name, "10.0.0.1", (0,), (f"GPU-{name}",), ()) for name in NODES]
        spec = JobSpec("j", Kind.RUN, ("true",), image="i", gpus=1, workers=len(NODES))
        attempt = Attempt(spec, "abc1", 1, {}, assignments_of(spec, places), Secrets(), ClusterSnapshot())
        contact = SimpleNamespace(connect=lambda name: StandIn(name, self))
        with Connections(contact) as connections:  # type: ignore[arg-type]
            return attempt_start.take_leases(connections, attempt)


def test_all_nodes_lease_their_gpus_at_the_same_time() -> None:
    """The wait for one node is not added to that for the others; each answers when all have been asked."""
    cluster = Cluster()

    assert cluster.take() is None
    assert cluster.leased == set(NODES)


def test_a_node_that_refuses_leaves_no_gpu_of_the_job_leased() -> None:
    """The reason names the node and who has its GPU."""
    cluster = Cluster("gpu3")
    why = cluster.take()

    assert (why.code, why.params["node_name"], why.params["cause"].params["job"]) == (
        "job.lease_refused",
        "gpu3",
        "other",
    )
    assert cluster.leased == set()
