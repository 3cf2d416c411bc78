"""Comparison with NVIDIA's allocator by its recorded rules: the bandwidth is never lower."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations

import pytest

from provision.topology.placement import Request
from provision.topology.select import place
from tests.unit.topology.boxes import device_box, device_sets
from tests.unit.topology.oracle import bits, inside

SETS = ("rtx8000_4x", "dgx1_pascal", "dgx1_volta")


@cache
def points(name: str, gpus: tuple[int, ...]) -> int:
    scores = device_sets()["device_sets"][name]["pair_scores"]
    return sum(scores[a][b] for a, b in combinations(gpus, 2))


def partitions(gpus: tuple[int, ...], size: int, padding: int) -> Iterator[list[tuple[int, ...]]]:
    """Return all partitions of the GPUs into sets, one of which has all padding; the first GPU's set comes first."""
    if not gpus:
        yield []
        return
    for pad in (0, padding) if padding else (0,):
        for others in combinations(gpus[1:], size - 1 - pad):
            rest = tuple(gpu for gpu in gpus[1:] if gpu not in others)
            yield from ([(gpus[0], *others), *more] for more in partitions(rest, size, padding - pad))


def theirs(name: str, available: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The set that the allocator picks: the best of the best partition, each the first of its equals."""
    if size == 1:
        return available[:1]
    cut = partitions(available, size, -len(available) % size)
    best = max(cut, key=lambda sets: sum(points(name, gpus) for gpus in sets))
    return max((gpus for gpus in best if len(gpus) == size), key=lambda gpus: points(name, gpus))


def ours(name: str, available: tuple[int, ...], size: int) -> tuple[int, ...]:
    node = device_box(name).candidate("n", sum(1 << gpu for gpu in available))
    return tuple(sorted(gpu for worker in place([node], Request(1, size)).workers for gpu in worker.gpus))


def compare(name: str, masks: range) -> tuple[int, int]:
    """Return for how many picks ours is faster, and for how many the set is another of equal speed."""
    box, faster, other = device_box(name), 0, 0
    for available in map(bits, masks):
        for size in range(1, len(available) + 1):
            mine, upstream = ours(name, available, size), theirs(name, available, size)

            assert inside(box, mine) >= inside(box, upstream), (available, size)
            faster += inside(box, mine) > inside(box, upstream)
            other += mine != upstream
    return faster, other


@pytest.mark.parametrize("name", SETS)
def test_bandwidth_is_never_lower_than_that_of_the_allocators_pick(name):
    """Here for some of the sets of free GPUs."""
    count = device_box(name).count
    compare(name, range(3, 1 << count, 1 if count < 8 else 19))


@pytest.mark.long
@pytest.mark.parametrize("name", SETS)
def test_bandwidth_is_never_lower_for_any_free_set_and_often_higher(name):
    faster, _ = compare(name, range(1, 1 << device_box(name).count))

    assert faster >= {"rtx8000_4x": 0, "dgx1_pascal": 57, "dgx1_volta": 68}[name]


def test_the_rules_of_the_reference_allocator_are_parsed():
    """The model of the allocator passes the allocator's own tests."""
    cases = [case for case in device_sets()["policy_cases"] if case["policy"] == "best_effort" and not case["required"]]
    asked = [case for case in cases if 0 < case["size"] <= len(case["available"])]

    assert asked
    for case in asked:
        given = theirs(case["device_set"], tuple(sorted(case["available"])), case["size"])
        assert sorted(given) == sorted(case["expected"]), case["description"]


def test_sequences_of_jobs_get_the_same_gpus_as_from_the_reference_allocator():
    """Each job leaves the same GPUs to the next as in the allocator's own tests."""
    sequences = [case for case in device_sets()["allocation_sequences"] if case["policy"] == "best_effort"]

    assert len(sequences) == 11
    for case in sequences:
        free = tuple(range(device_box(case["device_set"]).count))
        for step in case["steps"]:
            given = ours(case["device_set"], free, step["size"])
            assert sorted(given) == sorted(step["expected"]), (case["test"], free)
            free = tuple(gpu for gpu in free if gpu not in given)


def test_two_lanes_between_sockets_are_preferred_to_one_lane_within_a_socket():
    """Where the allocator keeps 0 and 2 for others, the job gets the faster pair."""
    assert theirs("dgx1_volta", (0, 2, 4, 5), 2) == (4, 5)
    assert ours("dgx1_volta", (0, 2, 4, 5), 2) == (0, 4)
