"""What a submission would start, as ``submit --dry-run`` shows it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from provision.batch.ranks import Place
from provision.jobs.cluster_snapshot import ClusterSnapshot
from provision.jobs.engines.common.dry_run import dry_run
from provision.jobs.engines.common.placement import PlacementResult
from provision.jobs.extras import JobExtras
from provision.model import Cluster, Connection, Node
from provision.model.job import CodeSource, JobSpec, Kind
from provision.profiles import NodeNetwork

PLACED = PlacementResult((Place("a", "10.0.0.1", (0,), ("GPU-0",)), Place("b", "10.0.0.2", (0,), ("GPU-1",))))


def started(**more):
    """Return the arguments of ``docker create`` by instance, for a job with two workers."""
    spec = JobSpec("j", Kind.PYTORCH, ("x",), image="train:1", gpus=1, workers=2, **more)
    return dry_run(spec, PLACED, ClusterSnapshot()).commands


@pytest.mark.row(12)
def test_workers_can_have_another_image():
    """The master uses the image of the job."""
    usual, own = started(), started(worker_image="worker:2")

    assert all("train:1" in words for words in usual.values())
    assert ("train:1" in own["j-master-0"], "worker:2" in own["j-master-0"]) == (True, False)
    assert ("train:1" in own["j-worker-0"], "worker:2" in own["j-worker-0"]) == (False, True)


@pytest.mark.row(35)
def test_variables_of_the_user_override_generated_ones():
    """Those of the ranks and of NCCL."""
    own = {"PYTHONUNBUFFERED": "0", "NCCL_DEBUG": "INFO", "MASTER_PORT": "23456"}
    network = NodeNetwork("a", "tcp", interface="eth0")
    spec = JobSpec("j", Kind.PYTORCH, ("x",), image="train:1", gpus=1, workers=2, env=own)
    snapshot = ClusterSnapshot(networks={name: replace(network, node=name) for name in ("a", "b")})
    result = dry_run(spec, PLACED, snapshot).environment["j-worker-0"]

    assert {name: result[name] for name in own} == own
    assert (result["RANK"], result["NCCL_SOCKET_IFNAME"]) == ("1", "=eth0")


@pytest.mark.row(48)
def test_a_container_has_the_network_of_the_host_and_the_requested_shared_memory():
    """The default is 32 GiB."""
    (words, _), (small, _) = started().values(), started(share_memory="2g").values()

    assert {("--network", "host"), ("--shm-size", "32g"), ("--ulimit", "memlock=-1")} <= set(pairwise(words))
    assert ("--ulimit", "stack=67108864") in pairwise(words)
    assert ("--shm-size", "2g") in pairwise(small)


@pytest.mark.row(23, 25, 28)
def test_data_code_and_logs_have_the_mounts_of_a_real_start(tmp_path):
    """With the paths of the nodes, and read-only for read-only volumes."""
    node = Node(
        "a",
        Connection("10.0.0.1"),
        variables={"cluster_data": {"train": {"kind": "path", "path": "/srv/train", "read_only": True}}},
    )
    extras = JobExtras(Cluster("c", tmp_path / "hosts.yml", (node,)))
    spec = JobSpec(
        "j", Kind.RUN, ("x",), image="train:1", data=(("train", "/data"),), sync=CodeSource("git", "/r/m.git")
    )
    (words,) = dry_run(spec, PlacementResult(PLACED.places[:1]), ClusterSnapshot(), extras).commands.values()

    mounts = [word for option, word in pairwise(words) if option == "--volume"]
    assert "/srv/train:/data:ro" in mounts
    assert "/var/lib/provision/jobs/j/code/m:/root/code/m" in mounts


@pytest.mark.row(12)
def test_without_a_container_an_instance_is_a_systemd_unit():
    """With the limits of the job; the shim makes the mounts."""
    code = CodeSource("git", "/r/m.git")
    spec = JobSpec(
        "j", Kind.RUN, ("x",), no_container=True, gpus=1, user="2042:2042", mounts=("/srv:/in:ro",), sync=code
    )
    extras = JobExtras(Cluster("c", Path("hosts.yml"), (Node("a", Connection("10.0.0.1")),)))
    plan = dry_run(spec, PlacementResult(PLACED.places[:1]), ClusterSnapshot(), extras)
    (words,), (variables,) = plan.commands.values(), plan.environment.values()

    assert (words[0], words[-4:]) == ("systemd-run", ("--", "sh", "-c", "x"))
    assert {"--property=LimitMEMLOCK=infinity", "--property=KillMode=control-group"} <= set(words)
    assert not any("Bind" in word for word in words), "systemd makes none of the mounts"
    assert (variables["CUDA_VISIBLE_DEVICES"], variables["NVIDIA_VISIBLE_DEVICES"]) == ("GPU-0", "GPU-0")
