"""Comparison with NVIDIA's allocator on described machines: the bandwidth is never lower."""

from __future__ import annotations

import pytest

from tests.unit.topology.allocator import compare, ours, theirs
from tests.unit.topology.boxes import BOXES, SMALL

MACHINES = {name: BOXES[name] for name in ("DGX-1V", "DGX-1P", "eight on PCIe")} | {"quad": SMALL["quad"]}


@pytest.mark.parametrize("name", MACHINES)
def test_bandwidth_is_never_lower_than_that_of_the_allocators_pick(name):
    """Here for some of the sets of free GPUs."""
    box = MACHINES[name]
    compare(box, range(3, 1 << box.count, 1 if box.count < 8 else 19))


@pytest.mark.long
@pytest.mark.parametrize(("name", "least"), [("DGX-1V", 68), ("DGX-1P", 57)])
def test_bandwidth_is_never_lower_for_any_free_set_and_often_higher(name, least):
    """Each set of free GPUs, and each number of GPUs."""
    faster, _ = compare(MACHINES[name], range(1, 1 << 8))

    assert faster >= least


def test_two_lanes_between_sockets_are_preferred_to_one_lane_within_a_socket():
    """Where the allocator keeps 0 and 2 for others, the job gets the faster pair."""
    assert theirs(MACHINES["DGX-1V"], (0, 2, 4, 5), 2) == (4, 5)
    assert ours(MACHINES["DGX-1V"], (0, 2, 4, 5), 2) == (0, 4)


def test_a_sequence_of_jobs_leaves_fast_pairs_to_the_next():
    """Each job of two GPUs on a DGX-1 gets two lanes."""
    box, free = MACHINES["DGX-1V"], tuple(range(8))
    for _ in range(4):
        given = ours(box, free, 2)
        assert box.lanes[given[0]][given[1]] == 2
        free = tuple(gpu for gpu in free if gpu not in given)

    assert free == ()
