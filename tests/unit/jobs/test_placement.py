"""The placement of jobs: all of a job or none of it, and no GPU that is in use."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from provision.documents import decode
from provision.documents.jobs import LookAnswer
from provision.errors import NeverFits
from provision.jobs.cluster_snapshot import ClusterSnapshot
from provision.jobs.engines.common.node_probe import NodeProbe
from provision.jobs.engines.common.placement import allowed, place_job
from provision.model import Connection, Node, Topology, TopologyGpu
from provision.model.job import JobSpec, Kind
from provision.model.reason import Reason, reason
from provision.report.reasons import message
from provision.topology.candidates import Candidate, Machine, Mode
from tests.support.reasons import params_of, parts

GPUS = 4


def node(name: str, **variables: Any) -> Node:
    """Return a node of the inventory."""
    return Node(name, Connection(name), variables=variables)


def snapshot(*names: str, mode: Mode = Mode.DEFAULT, **left_out: Reason) -> ClusterSnapshot:
    """Return nodes with four GPUs each, connected by PCIe."""
    links = tuple(tuple("X" if a == b else "PIX" for b in range(GPUS)) for a in range(GPUS))
    machine = Machine(Topology(tuple(TopologyGpu(index) for index in range(GPUS)), (), links))
    candidates = {name: Candidate(name, machine, mode=mode) for name in names}
    return ClusterSnapshot(
        candidates, left_out, {name: f"10.0.0.{i}" for i, name in enumerate(names)}, cpus=dict.fromkeys(names, 2)
    )


def probe(name: str, *unavailable: int, **more: Any) -> NodeProbe:
    """Return a node some of whose GPUs are leased."""
    gpus = [{"index": index, "uuid": f"GPU-{name}-{index}"} for index in range(GPUS)]
    leases = {f"GPU-{name}-{index}": {"job": "other"} for index in unavailable}
    document = {"gpus": gpus, "leases": leases, "foreign": {}, "jobs": [], **more}
    return NodeProbe.of(name, decode(json.dumps(document), LookAnswer, node=name, what="answer"))


def job(gpus: int, workers: int, kind: Kind = Kind.PYTORCH, **more: Any) -> JobSpec:
    """Return a job."""
    return JobSpec("j", kind, ("x",), gpus=gpus, workers=workers, **more)


@contextlib.contextmanager
def refused(code: str, **params: Any) -> Iterator[None]:
    """Expect that a job can never start, for this reason."""
    with pytest.raises(NeverFits) as error:
        yield
    why = error.value.reason
    assert why is not None
    assert (why.code, error.value.code) == (code, code)
    assert {**why.params, **params} == why.params


def unused(why: Reason) -> dict[str, Reason]:
    """Return why nodes are not used, by node."""
    groups = [part.params for part in parts(why) if part.code == "placement.nodes"]
    return {name: group["cause"] for group in groups for name in group["names"]}


def probes(*nodes: NodeProbe) -> dict[str, NodeProbe]:
    """Return node probes by name."""
    return {one.node: one for one in nodes}


@pytest.mark.row(17, 41)
def test_four_workers_with_one_gpu_each_use_one_node() -> None:
    """Placement uses the fewest nodes, as documented."""
    placement = place_job(job(1, 4), snapshot("a", "b"), probes(probe("a"), probe("b")), ["a", "b"])

    assert {place.node for place in placement.places} in ({"a"}, {"b"})
    assert len({uuid for place in placement.places for uuid in place.uuids}) == 4


def test_a_node_with_lost_gpus_takes_only_jobs_without_gpus() -> None:
    """A job that needs its GPUs gets the reason."""
    there = replace(snapshot(), gpus_out={"a": reason("placement.gpus_missing")}, cpus={"a": 2})

    assert [place.node for place in place_job(job(0, 1), there, probes(probe("a")), ["a"]).places] == ["a"]
    refused = place_job(job(1, 1), there, probes(probe("a")), ["a"])
    assert refused.places == ()
    assert unused(refused.reason) == {"a": reason("placement.gpus_missing")}


def test_gpus_in_use_are_not_assigned() -> None:
    """With a lease or a foreign process."""
    used = probe("a", 0, foreign={"GPU-a-1": "python3 (pid 7)"})
    placement = place_job(job(2, 1), snapshot("a"), probes(used), ["a"])

    assert set(placement.places[0].uuids) == {"GPU-a-2", "GPU-a-3"}


@pytest.mark.row(3, 7)
def test_all_workers_of_a_job_are_placed_or_none() -> None:
    """The missing resources are reported."""
    placement = place_job(job(4, 2), snapshot("a", "b"), probes(probe("a"), probe("b", 3)), ["a", "b"])

    assert placement.places == ()
    assert placement.reason.code == "job.insufficient_resources"
    shortage = params_of(placement.reason, "placement.insufficient_gpus")
    assert (shortage["missing"], shortage["workers"]) == (1, 2)


def test_a_waiting_job_names_the_jobs_and_processes_that_use_the_gpus() -> None:
    """Those with the most GPUs first."""
    idle, busy = probe("n1", 0), probe("n2", 1, 2, foreign={"GPU-n2-0": "python3 (pid 7)"})
    why = place_job(job(4, 2), snapshot("n1", "n2"), probes(idle, busy), ["n1", "n2"]).reason
    assert [part.params for part in parts(why) if part.code == "placement.gpus_of_holder"] == [
        {"holder": "other", "gpus": 3},
        {"holder": "python3 (pid 7)", "gpus": 1},
    ]
    assert "GPUs in use by other (3), python3 (pid 7) (1)" in message(why)


def test_a_job_with_insufficient_resources_on_all_nodes_is_refused() -> None:
    """It would wait forever."""
    with refused("placement.exceeds_cluster"):
        place_job(job(8, 1), snapshot("a", "b"), probes(probe("a"), probe("b")), ["a", "b"])


def test_a_job_waits_if_an_unreachable_node_may_have_the_missing_resources() -> None:
    silent = reason("placement.node_unreachable", cause="no route")
    placement = place_job(job(4, 2), snapshot("a", b=silent), probes(probe("a")), ["a", "b"])

    assert placement.places == ()
    assert unused(placement.reason) == {"b": silent}


@pytest.mark.row(2, 5, 6)
@pytest.mark.parametrize("kind", Kind)
def test_topology_jobs_use_topology_nodes_only(kind: Kind) -> None:
    """Jobs of every kind, and other jobs use none of these nodes."""
    with refused("placement.no_topology_node"):
        place_job(job(1, 1, kind=kind, gputopology=True), snapshot("a"), probes(probe("a")), ["a"])
    with refused("placement.no_default_node"):
        place_job(job(1, 1, kind=kind), snapshot("a", mode=Mode.TOPOLOGY), probes(probe("a")), ["a"])
    placement = place_job(
        job(4, 1, kind=kind, gputopology=True), snapshot("a", mode=Mode.TOPOLOGY), probes(probe("a")), ["a"]
    )
    assert len(placement.places[0].uuids) == 4


def test_a_drained_node_is_used_only_with_a_toleration() -> None:
    """--toleration all, or --toleration drained."""
    drained = probes(probe("a", drained="fan broken"))

    why = place_job(job(1, 1), snapshot("a"), drained, ["a"]).reason
    assert unused(why) == {"a": reason("placement.node_drained", cause="fan broken")}
    assert place_job(job(1, 1, allow_drained=True), snapshot("a"), drained, ["a"]).places


@pytest.mark.row(41)
def test_workers_are_spread_and_limited_by_node() -> None:
    """--spread and --max-per-node."""
    names, nodes = ["a", "b"], probes(probe("a"), probe("b"))
    spread = place_job(job(1, 2, spread=True), snapshot("a", "b"), nodes, names)
    capped = place_job(job(1, 4, max_per_node=2), snapshot("a", "b"), nodes, names)

    assert {place.node for place in spread.places} == {"a", "b"}
    assert sorted(place.node for place in capped.places) == ["a", "a", "b", "b"]


def test_workers_without_gpus_fill_a_node_before_the_next() -> None:
    """A node takes as many as it has processors, and the rest is distributed."""
    placement = place_job(job(0, 3), snapshot("a", "b"), probes(probe("a"), probe("b")), ["a", "b"])

    assert [place.node for place in placement.places] == ["a", "a", "b"]
    assert all(place.uuids == () for place in placement.places)


def test_a_node_with_unknown_gpus_gets_no_workers() -> None:
    """A hanging nvidia-smi does not mean free GPUs."""
    silent = probes(probe("a", gpu_error="hung: nvidia-smi"))

    assert place_job(job(1, 1), snapshot("a"), silent, ["a"]).places == ()


def test_nodes_are_selected_by_labels_names_and_failures() -> None:
    """--nodes, --exclude, --selector, and the nodes of failed attempts."""
    nodes = [node("a", cluster_labels={"disk": "nvme"}), node("b"), node("c")]

    assert [one.name for one in allowed(job(0, 1, selector={"disk": "nvme"}), nodes)[0]] == ["a"]
    assert [one.name for one in allowed(job(0, 1, exclude=("a",)), nodes, ["b"])[0]] == ["c"]
    with refused("placement.unknown_node", nodes=("x",)):
        allowed(job(0, 1, nodes=("x",)), nodes)


def live_job(name: str, **spec: Any) -> dict[str, Any]:
    """Return a node's report of a job on it."""
    instance = f"{name}-worker-0"
    return {"name": name, "id": name, "spec": spec, "instances": {instance: {"instance": instance}}, "result": None}


def test_an_exclusive_job_requires_an_idle_node_and_blocks_it_for_others() -> None:
    """With and without GPUs; jobs that have finished or never started do not count."""
    nodes = probes(probe("a", jobs=[live_job("alone", exclusive=True)]))
    busy = probes(probe("a", jobs=[live_job("other")]))
    empty = probes(probe("a", jobs=[{**live_job("old"), "result": {"status": "FAILED"}}]))
    failed = probes(probe("a", jobs=[{**live_job("old"), "queue": {"state": "failed"}}]))

    for gpus in (0, 1):
        waits = place_job(job(gpus, 1), snapshot("a"), nodes, ["a"]).reason
        assert unused(waits) == {"a": reason("placement.node_exclusive", job="alone")}
        assert place_job(job(gpus, 1), snapshot("a"), busy, ["a"]).places
        waits = place_job(job(gpus, 1, exclusive=True), snapshot("a"), busy, ["a"]).reason
        assert unused(waits) == {"a": reason("placement.node_not_idle", job="other")}
        assert place_job(job(gpus, 1, exclusive=True), snapshot("a"), empty, ["a"]).places
        assert place_job(job(gpus, 1, exclusive=True), snapshot("a"), failed, ["a"]).places


def test_all_gpus_and_mig_instances_of_an_exclusive_node_are_leased() -> None:
    """So that no other job gets them between two probes."""
    gpus = [{"index": 0, "uuid": "GPU-0"}, {"index": 1, "uuid": "GPU-1", "mig": ["MIG-1a", "MIG-1b"]}]

    assert probe("a", gpus=gpus).all_gpus() == ("GPU-0", "MIG-1a", "MIG-1b")


def test_only_the_named_gpus_are_used() -> None:
    """By the numbers of nvidia-smi on each node."""
    placement = place_job(job(1, 2, gpu_ids=(1, 3)), snapshot("a"), probes(probe("a")), ["a"])
    assert sorted(place.gpus for place in placement.places) == [(1,), (3,)]
    waits = place_job(job(1, 1, gpu_ids=(1,)), snapshot("a"), probes(probe("a", 1)), ["a"])
    assert (waits.places, waits.reason.code) == ((), "job.insufficient_resources")
    with refused("placement.exceeds_cluster"):
        place_job(job(1, 1, gpu_ids=(9,)), snapshot("a"), probes(probe("a")), ["a"])


def test_without_gang_as_many_workers_as_possible_are_placed() -> None:
    """At least one. The others are reported, and a job with insufficient resources on all nodes is refused."""
    some = place_job(job(2, 3, gang=False), snapshot("a"), probes(probe("a", 0)), ["a"])
    assert len(some.places) == 1
    assert (some.warnings[0].code, some.warnings[0].params["count"]) == ("placement.partial", 1)
    all_of_it = place_job(job(2, 2, gang=False), snapshot("a"), probes(probe("a")), ["a"])
    assert (len(all_of_it.places), all_of_it.warnings) == (2, ())
    none = place_job(job(2, 3, gang=False), snapshot("a"), probes(probe("a", 0, 1, 2)), ["a"])
    assert (none.places, none.reason.code) == ((), "job.insufficient_resources")
    cpu = place_job(
        job(0, 3, gang=False, max_per_node=1), snapshot("a", "b"), probes(probe("a"), probe("b")), ["a", "b"]
    )
    assert (len(cpu.places), cpu.warnings[0].params["count"]) == (2, 2)
    with refused("placement.exceeds_cluster"):
        place_job(job(5, 2, gang=False), snapshot("a"), probes(probe("a")), ["a"])


def test_a_node_without_gpus_does_not_make_an_impossible_job_wait() -> None:
    """It was reached and has none; a node with unknown GPUs may have the missing ones."""
    full = snapshot("a")
    cluster = ClusterSnapshot(full.candidates, {}, full.addresses, cpus={"a": 2, "login": 8})
    login = probe("login", gpus=[])

    with refused("placement.exceeds_cluster"):
        place_job(job(8, 1), cluster, probes(probe("a"), login), ["a", "login"])
    with refused("placement.no_gpus"):
        place_job(job(1, 1), cluster, probes(probe("a"), login), ["login"])
    hung = probe("login", gpus=[], gpu_error="nvidia-smi hung")
    waits = place_job(job(8, 1), cluster, probes(probe("a"), hung), ["a", "login"])
    assert waits.reason.code == "job.insufficient_resources"


def test_an_empty_selection_of_nodes_is_refused_with_reasons() -> None:
    """By a selector, or by --exclude of all nodes; after failed attempts the job waits."""
    nodes = [node("a", cluster_labels={"disk": "nvme"}), node("b")]

    missing = reason("placement.label_missing", label="disk", value="ssd")
    with refused("placement.no_node_matches", nodes=(reason("placement.nodes", names=["a", "b"], cause=missing),)):
        allowed(job(1, 1, selector={"disk": "ssd"}), nodes)
    excluded = reason("placement.nodes", names=["a", "b"], cause=reason("placement.excluded"))
    with refused("placement.no_node_matches", nodes=(excluded,)):
        allowed(job(0, 1, exclude=("a", "b")), nodes)
    assert allowed(job(1, 1), nodes, ["a", "b"]) == ([], dict.fromkeys("ab", reason("placement.attempt_failed")))


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_node_without_a_running_docker_gets_no_workers(gpus: int) -> None:
    """Another node is used."""
    silent = probe("a", docker_error="docker's engine does not answer")

    waits = place_job(job(gpus, 1), snapshot("a"), probes(silent), ["a"])
    assert waits.places == ()
    assert unused(waits.reason)["a"] == reason("placement.no_containers", cause="docker's engine does not answer")
    assert message(waits.reason).endswith(". To set up a, run: provision apply")
    some = place_job(job(gpus, 1), snapshot("a", "b"), probes(silent, probe("b", drained="repair")), ["a", "b"])
    assert message(some.reason).endswith("To set up a, run: provision apply --limit a")
    two = [probe(name, docker_error="docker's engine does not answer") for name in ("a", "gpu9")]
    most = place_job(
        job(gpus, 1), snapshot("a", "gpu9", "b"), probes(*two, probe("b", drained="x")), ["a", "gpu9", "b"]
    )
    assert message(most.reason).endswith("run: provision apply --limit a,gpu9")
    placement = place_job(job(gpus, 1), snapshot("a", "b"), probes(silent, probe("b")), ["a", "b"])
    assert [place.node for place in placement.places] == ["b"]


def test_many_workers_without_gpus_are_distributed_like_few() -> None:
    """First by processors in the order of the inventory, then in turn; spread ones in turn from the start."""
    names, nodes = ["a", "b", "c"], probes(probe("a"), probe("b", jobs=[live_job("other")]), probe("c"))

    def counts(**more: Any) -> list[int]:
        placement = place_job(job(0, more.pop("workers"), **more), snapshot(*names), nodes, names)
        return [sum(place.node == name for place in placement.places) for name in names]

    assert counts(workers=16000) == [5334, 5333, 5333]
    assert counts(workers=5) == [2, 1, 2]
    assert counts(workers=6) == [2, 2, 2]
    assert counts(workers=4, spread=True) == [2, 1, 1]
    assert counts(workers=5, max_per_node=2) == [2, 1, 2]
    with refused("placement.workers_per_node", workers=7, nodes=3, max_per_node=2):
        counts(workers=7, max_per_node=2)


@pytest.mark.parametrize("limits", [{"max_per_node": 4}, {"exclusive": True}, {"exclusive": True, "gputopology": True}])
def test_workers_share_a_node_unless_spread(limits: dict[str, Any]) -> None:
    """Limits that one node satisfies, and a node without other jobs, do not split a job."""
    nodes = snapshot("a", "b", mode=Mode.TOPOLOGY if limits.get("gputopology") else Mode.DEFAULT)
    placement = place_job(job(1, 4, **limits), nodes, probes(probe("a"), probe("b")), ["a", "b"])

    assert [place.node for place in placement.places] == ["a"] * 4


def test_the_refusal_names_the_limit_of_workers_per_node() -> None:
    """With the number of workers that would fit."""
    nodes = probes(probe("a", 0, 1, 2), probe("b"))
    placement = place_job(job(1, 4, max_per_node=2), snapshot("a", "b"), nodes, ["a", "b"])

    assert placement.places == ()
    shortage = params_of(placement.reason, "placement.insufficient_gpus")
    assert (shortage["missing"], shortage["workers"], shortage["max_per_node"]) == (1, 4, 2)
