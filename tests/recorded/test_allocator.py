"""NVIDIA's allocator on its own recorded cases: our model of its rules is right, and our bandwidth is never lower."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from tests.recorded.data import recorded
from tests.unit.topology.allocator import compare, ours, pair_score, theirs
from tests.unit.topology.boxes import Box, Card

SETS = ("rtx8000_4x", "dgx1_pascal", "dgx1_volta")


@cache
def cases() -> dict[str, Any]:
    """Return the recorded cases."""
    return json.loads(recorded("gpuallocator_cases.json"))


@cache
def device_box(name: str) -> Box:
    """Return the device set of a recorded case; a card next to each GPU reveals the PCIe classes that NVLink hides."""
    device_set = cases()["device_sets"][name]
    lanes = tuple(map(tuple, device_set["nvlink_counts"]))
    pcie = tuple(tuple(kind or "SYS" for kind in row) for row in device_set["pcie_types"])
    cards = tuple(Card(tuple("PIX" if kind == "X" else kind for kind in row)) for row in pcie)
    return Box(lanes, pcie, None, cards, lane=180 if name == "dgx1_pascal" else 200)


@pytest.mark.parametrize("name", SETS[1:])
def test_the_score_of_each_pair_is_the_allocators(name):
    """The rules of the model give the recorded scores; the first set lacks the PCIe class of pairs with NVLink."""
    box, scores = device_box(name), cases()["device_sets"][name]["pair_scores"]

    assert [[pair_score(box, a, b) for b in range(box.count) if a != b] for a in range(box.count)] == [
        [score for b, score in enumerate(row) if a != b] for a, row in enumerate(scores)
    ]


@pytest.mark.parametrize("name", SETS)
def test_bandwidth_is_never_lower_than_that_of_the_allocators_pick(name):
    """Here for some of the sets of free GPUs."""
    box = device_box(name)
    compare(box, range(3, 1 << box.count, 1 if box.count < 8 else 19))


@pytest.mark.long
@pytest.mark.parametrize("name", SETS)
def test_bandwidth_is_never_lower_for_any_free_set_and_often_higher(name):
    faster, _ = compare(device_box(name), range(1, 1 << device_box(name).count))

    assert faster >= {"rtx8000_4x": 0, "dgx1_pascal": 57, "dgx1_volta": 68}[name]


def test_the_rules_of_the_reference_allocator_are_parsed():
    """The model of the allocator passes the allocator's own tests."""
    chosen = [case for case in cases()["policy_cases"] if case["policy"] == "best_effort" and not case["required"]]
    asked = [case for case in chosen if 0 < case["size"] <= len(case["available"])]

    assert asked
    for case in asked:
        given = theirs(device_box(case["device_set"]), tuple(sorted(case["available"])), case["size"])
        assert sorted(given) == sorted(case["expected"]), case["description"]


def test_sequences_of_jobs_get_the_same_gpus_as_from_the_reference_allocator():
    """Each job leaves the same GPUs to the next as in the allocator's own tests."""
    sequences = [case for case in cases()["allocation_sequences"] if case["policy"] == "best_effort"]

    assert len(sequences) == 11
    for case in sequences:
        free = tuple(range(device_box(case["device_set"]).count))
        for step in case["steps"]:
            given = ours(device_box(case["device_set"]), free, step["size"])
            assert sorted(given) == sorted(step["expected"]), (case["test"], free)
            free = tuple(gpu for gpu in free if gpu not in given)
