"""GPUs of `provision run`, leased by the real node program on two folders; Docker and nvidia-smi are STAND-INS."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
import time
from dataclasses import replace

import pytest

from provision.connectors.local import LocalConnector
from provision.errors import LaunchError
from provision.jobs.engines.common import gpu_reservation
from provision.model.job_requests import GpuRequest
from provision.node.jobs import leasing as node_leasing
from provision.testing import make_node
from tests.support.node.node import GPUS, FakeNode, until

NODES = ("a", "b")
ALL = {name: len(GPUS) for name in NODES}


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """Two nodes that are folders of this machine."""
    made = {name: FakeNode(tmp_path / name, name).with_docker() for name in NODES}

    class Way(LocalConnector):
        def start(self, script, *, become=True, limit=None):  # noqa: ARG002 - as connectors have it
            pairs = made[self.name].environment.items()
            exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in pairs)
            return super().start(exports + script, become=become)

    monkeypatch.setattr(gpu_reservation, "connect", Way)
    yield made
    for node in made.values():
        node.end_engine()


def reserved(job, counts):
    """Reserve GPUs of nodes for a job; the account of a node identifies the connections of the job."""
    made = {name: make_node(name, local=True) for name in NODES}
    made = {name: replace(node, connection=replace(node.connection, user=job)) for name, node in made.items()}
    return gpu_reservation.reserved_gpus(job, [GpuRequest(name, count) for name, count in counts.items()], made)


def leases(node):
    """Return the owners of a node's GPUs."""
    return {lease["job"] for lease in node.ok("look")["leases"].values()}


def test_one_of_two_simultaneous_jobs_gets_all_gpus(nodes, monkeypatch):
    """Each leased another node first; the other job is refused with the name of the owner."""
    connect, first, over = gpu_reservation.connect, {"one": "a", "two": "b"}, threading.Event()
    both, was_late = threading.Barrier(2), dict.fromkeys(first, False)

    def crossing(node):
        """Reach the other job's first node after that job has leased it and before it has released it."""
        job = node.connection.user
        if first[job] != node.name and not was_late[job]:
            was_late[job] = True
            until(lambda: leases(nodes[node.name]), "the other one's leases")
            subprocess.Popen(["sleep", "1"], env={**os.environ, "PROVISION_JOB": job})
            both.wait(10)
        return connect(node)

    monkeypatch.setattr(gpu_reservation, "connect", crossing)
    ends: dict[str, str] = {}

    def run(job):
        try:
            with reserved(job, ALL):
                ends[job] = "started"
                over.wait(30)
        except LaunchError as error:
            ends[job] = str(error)

    jobs = [threading.Thread(target=run, args=(job,)) for job in first]
    for job in jobs:
        job.start()
    until(lambda: len(ends) == 2, "the end of one and the start of the other", 30)
    (winner,) = [job for job, end in ends.items() if end == "started"]
    taken = [leases(node) for node in nodes.values()]
    over.set()
    for job in jobs:
        job.join()

    assert all(was_late.values())
    assert taken == [{winner}, {winner}]
    (refusal,) = [end for end in ends.values() if end != "started"]
    assert f"is held by the job {winner}" in refusal
    until(lambda: not any(leases(node) for node in nodes.values()), "the GPUs are given back")


def test_a_refused_job_has_no_leases(nodes):
    """Neither while the other job runs nor afterwards."""
    with reserved("one", {"a": 1}):
        with pytest.raises(LaunchError, match="held by the job one"), reserved("two", ALL):
            pass
        until(lambda: [leases(node) for node in nodes.values()] == [{"one"}, set()], "what was held is given back")


@pytest.mark.parametrize(
    ("taken", "is_waited_for"),
    [
        ({}, False),
        ({"GPU-a": {"job": "r", "id": "r", "age": 1}}, True),
        ({"GPU-a": {"job": "r", "id": "r", "age": 60}}, False),
        ({"GPU-a": {"job": "batch", "id": "t1", "age": 1}}, False),
        ({"GPU-a": {"job": "r", "id": "r", "age": 1}, "GPU-b": {"job": "pid 7", "foreign": "pid 7"}}, False),
    ],
)
def test_a_job_waits_only_for_jobs_of_run_that_are_starting(taken, is_waited_for):
    """GPUs in use are reported at once."""
    taken = {uuid: {**lease, "time": time.time() - lease.get("age", 0)} for uuid, lease in taken.items()}
    assert node_leasing.is_starting(taken) is is_waited_for
