"""What each rank gets of a placement."""

from __future__ import annotations

import pytest

from provision.model import Topology, TopologyGpu
from provision.topology.candidates import Candidate, Machine
from provision.topology.placement import Placement, Places, Request, Worker
from provision.topology.rank_placement import node_placements


def places(*cpus):
    gpus = (TopologyGpu(0, 0, cpus), TopologyGpu(1, 1, ("8-9",)))
    return Places((Candidate("a", Machine(Topology(gpus, (), (("X", "PIX"), ("PIX", "X"))))),))


def test_workers_of_a_node_are_merged_in_order():
    """Each GPU is a rank, along the ring, with the CPUs and the NUMA node of its own."""
    workers = (Worker("a", (0, 1), (1, 0), ("mlx5_0",)), Worker("b", (3,), (3,), ()))
    placements = node_placements(Placement(Request(2, 2), "", workers), places("0-1", "4"))

    assert [node.node for node in placements] == ["a", "b"]
    assert [(rank.gpus, rank.cpus, rank.numa) for rank in placements[0].ranks] == [
        (("1",), (8, 9), 1),
        (("0",), (0, 1, 4), 0),
    ]
    assert placements[0].ranks[0].nics == ("mlx5_0",)


@pytest.mark.parametrize("affinity", ["", "N/A", "0-x", "0-999999"])
def test_an_invalid_cpu_affinity_binds_no_rank(affinity):
    """A node's odd answer stops no job."""
    placements = node_placements(Placement(Request(1, 1), "", (Worker("a", (0,), (0,), ()),)), places("0-1", affinity))

    assert placements[0].ranks[0].cpus == ()
