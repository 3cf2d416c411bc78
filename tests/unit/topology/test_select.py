"""Which GPUs and nodes a job gets, against what trying everything gives."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from provision.topology.placement import Request
from provision.topology.select import place
from tests.unit.topology.boxes import BOXES, SMALL
from tests.unit.topology.oracle import best_jobs, best_sets

CLUSTERS = {
    "three quads": (["quad"] * 3, ["", "", ""]),
    "three on PCIe, two leaves": (["PCIe"] * 3, ["l1", "l2", "l2"]),
    "three with rails": (["rails"] * 3, ["", "", ""]),
    "bridges, quad and PCIe, two leaves": (["bridges", "quad", "PCIe"], ["l1", "l1", "l2"]),
}


def on_one_node(kind, masks):
    """Compare every size of every mask."""
    box = BOXES[kind]
    for free in masks:
        for size in range(1, free.bit_count() + 1):
            placed = place([box.candidate("n", free)], Request(1, size))

            assert sorted(gpu for worker in placed.workers for gpu in worker.gpus) == [*best_sets(box, free, size)]


@pytest.mark.parametrize("kind", BOXES)
def test_on_one_node_the_choice_is_the_best_of_all(kind):
    """By the whole key; here for some sets of free GPUs."""
    on_one_node(kind, [255, *Random(7).sample(range(1, 255), 6)])  # noqa: S311


@pytest.mark.long
@pytest.mark.parametrize("kind", BOXES)
def test_on_one_node_the_choice_is_the_best_of_all_for_every_free_set(kind):
    on_one_node(kind, range(1, 256))


def on_three_nodes(cluster, masks, **request):
    """Compare every size of every combination of masks."""
    kinds, leaves = CLUSTERS[cluster]
    boxes = [SMALL[kind] for kind in kinds]
    for frees in masks:
        nodes = [
            box.candidate(f"n{number}", free, leaf=leaf)
            for number, (box, free, leaf) in enumerate(zip(boxes, frees, leaves, strict=True))
        ]
        step, wanted = request.get("step", 1), {key: value for key, value in request.items() if key != "step"}
        expected = best_jobs(boxes, frees, leaves, step=step, **wanted)
        for total in range(step, sum(map(int.bit_count, frees)) + 1, step):
            placed = place(nodes, Request(step, total // step, **wanted))
            given = {}
            for worker in placed.workers:
                given.setdefault(int(worker.node[1:]), []).extend(worker.gpus)

            found = [(node, tuple(sorted(gpus))) for node, gpus in given.items()]
            assert found == expected.get(total, []), (frees, total)


def some_masks(count, seed):
    return [tuple(Random(seed + number).choices(range(16), k=3)) for number in range(count)]  # noqa: S311


@pytest.mark.parametrize("request_", [{}, {"uniform": True}, {"pack": True}, {"step": 2}], ids=str)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_on_three_nodes_the_choice_is_the_best_of_all(cluster, request_):
    """By the whole key, for every size; here for some combinations of free GPUs."""
    on_three_nodes(cluster, some_masks(4, len(cluster)), **request_)


@pytest.mark.long
@pytest.mark.parametrize("request_", [{}, {"uniform": True}, {"pack": True}, {"step": 2}], ids=str)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_on_three_nodes_the_choice_is_the_best_of_all_for_all_free_sets(cluster, request_):
    on_three_nodes(cluster, product(range(16), repeat=3), **request_)
