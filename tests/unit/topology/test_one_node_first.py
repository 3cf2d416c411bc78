"""A job uses the network only where one node cannot do as well."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from provision.documents import convert
from provision.documents.jobs import LookAnswer
from provision.jobs.cluster_snapshot import ClusterSnapshot
from provision.jobs.engines.common.node_probe import NodeProbe
from provision.jobs.engines.common.placement import place_job
from provision.model.job import JobSpec, Kind
from provision.topology.candidates import Candidate, Mode
from provision.topology.placement import Request
from provision.topology.score import SetScores
from provision.topology.select import place
from tests.unit.topology.described import MACHINES

SCORES = {name: SetScores(machine) for name, machine in MACHINES.items()}


@st.composite
def clusters(draw):
    """Return one to four nodes: the description of each and its free GPUs, as a mask."""
    kinds = draw(st.lists(st.sampled_from(sorted(MACHINES)), min_size=1, max_size=4))
    alike = draw(st.booleans())
    kinds = [kinds[0]] * len(kinds) if alike else kinds
    every = [(1 << SCORES[kind].count) - 1 for kind in kinds]
    return tuple(
        (kind, draw(st.one_of(st.just(total), st.integers(0, total)))) for kind, total in zip(kinds, every, strict=True)
    )


SHAPES = st.tuples(st.sampled_from((1, 2, 3, 4, 8)), st.integers(1, 32))
IDLE = tuple([("dgx1v", 255)] * 3)
OBSERVED = [(1, 4), (1, 8), (2, 8)]
"""GPUs of a worker and workers of jobs that took too many of three idle nodes of eight V100."""


def candidates(cluster, mode=None):
    """Return the nodes of a cluster."""
    return [
        Candidate(
            f"n{number}",
            MACHINES[kind],
            busy=frozenset(gpu for gpu in range(SCORES[kind].count) if not free >> gpu & 1),
            mode=mode,
        )
        for number, (kind, free) in enumerate(cluster)
    ]


def on_one_node(cluster, gpus):
    """Return the best bandwidth of this many GPUs of one node by exhaustive search; None if no node has enough."""
    rates = [
        SCORES[kind].inside(sum(rows))
        for kind, free in cluster
        for rows in combinations([1 << row for row in range(SCORES[kind].count) if free >> row & 1], gpus)
    ]
    return max(rates, default=None)


def fewest_nodes(cluster, shape):
    """Return the fewest nodes with room for all workers; None where there is too little room."""
    left = shape[1]
    for count, room in enumerate(sorted((free.bit_count() // shape[0] for _, free in cluster), reverse=True), start=1):
        left -= room
        if left <= 0:
            return count
    return None


@settings(max_examples=150, deadline=None)
@given(
    cluster=clusters(),
    shape=SHAPES,
    uniform=st.booleans(),
    pack=st.booleans(),
    mode=st.sampled_from((Mode.DEFAULT, Mode.TOPOLOGY)),
)
@example(cluster=IDLE, shape=OBSERVED[0], uniform=False, pack=True, mode=Mode.DEFAULT)
@example(cluster=IDLE, shape=OBSERVED[1], uniform=False, pack=True, mode=Mode.DEFAULT)
@example(cluster=IDLE, shape=OBSERVED[2], uniform=False, pack=True, mode=Mode.DEFAULT)
def test_a_job_is_split_only_to_be_faster(cluster, shape, uniform, pack, mode):
    """With every preference, the predicted bandwidth is at least that of the best single node, and more if split."""
    single = on_one_node(cluster, shape[0] * shape[1])
    placement = place(candidates(cluster, mode), Request(*shape, uniform=uniform, pack=pack, mode=mode))

    if single is not None:
        assert placement.key.bandwidth >= single
        assert placement.key.nodes == 1 or placement.key.bandwidth > single
        assert not pack or placement.key.nodes == 1
    if pack and not uniform and (fewest := fewest_nodes(cluster, shape)):
        assert placement.key.nodes == fewest


@settings(max_examples=150, deadline=None)
@given(
    cluster=clusters(),
    shape=SHAPES,
    gang=st.booleans(),
    gputopology=st.booleans(),
    kind=st.sampled_from((Kind.PYTORCH, Kind.MPI)),
)
@example(cluster=IDLE, shape=OBSERVED[0], gang=True, gputopology=False, kind=Kind.PYTORCH)
@example(cluster=IDLE, shape=OBSERVED[1], gang=True, gputopology=False, kind=Kind.PYTORCH)
@example(cluster=IDLE, shape=OBSERVED[2], gang=True, gputopology=False, kind=Kind.PYTORCH)
@example(cluster=IDLE, shape=OBSERVED[2], gang=False, gputopology=True, kind=Kind.MPI)
def test_a_batch_job_is_split_only_to_be_faster(cluster, shape, gang, gputopology, kind):
    """The same for `submit`, with and without --gang and --gputopology, for the workers that start."""
    mode = Mode.TOPOLOGY if gputopology else Mode.DEFAULT
    nodes = {one.name: one for one in candidates(cluster, mode)}
    # A worker that fits no idle node is refused before anything is placed.
    if max(SCORES[kind_].count for kind_, _ in cluster) < shape[0]:
        return
    if gang and sum(SCORES[kind_].count // shape[0] for kind_, _ in cluster) < shape[1]:
        return
    snapshots = {name: _look(name, one) for name, one in nodes.items()}
    spec = JobSpec("j", kind, ("x",), gpus=shape[0], workers=shape[1], gang=gang, gputopology=gputopology)

    places = place_job(spec, ClusterSnapshot(nodes), snapshots, list(nodes)).places

    used = {node: sum(1 << gpu for one in places if one.node == node for gpu in one.gpus) for node in nodes}
    used = {node: mask for node, mask in used.items() if mask}
    single = on_one_node(cluster, shape[0] * len(places)) if places else None
    if single is None:
        return
    if len(used) > 1:
        # The network can only lower what the slowest node carries.
        assert gputopology
        assert min(SCORES[cluster[int(node[1:])][0]].inside(mask) for node, mask in used.items()) > single
    else:
        ((node, mask),) = used.items()
        assert SCORES[cluster[int(node[1:])][0]].inside(mask) == single


def _look(name, candidate):
    gpus = [{"index": gpu.index, "uuid": f"{name}-{gpu.index}"} for gpu in candidate.machine.topology.gpus]
    leases = {f"{name}-{index}": {"job": "other"} for index in candidate.busy}
    answer = {"boot_id": "", "now": 0.0, "gpus": gpus, "leases": leases}
    return NodeProbe.of(name, convert(answer, LookAnswer, node=name, what="answer"))


@pytest.mark.parametrize("shape", OBSERVED)
def test_idle_nodes_are_filled_one_by_one(shape):
    """Four and eight workers of a GPU share a node at full bandwidth, eight of two GPUs need two."""
    placement = place(candidates(IDLE), Request(*shape, pack=True))

    assert (placement.key.nodes, placement.key.bandwidth) == {4: (1, 800), 8: (1, 1200), 16: (2, 480)}[
        shape[0] * shape[1]
    ]
