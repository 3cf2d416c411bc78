"""Traffic between leaf switches: of equal nodes, those with the fewest pairs on different leaf switches."""

from __future__ import annotations

from itertools import groupby, product
from random import Random

import pytest

from provision.topology.placement import Request
from provision.topology.select import place
from tests.unit.topology.boxes import BOXES

BOX = BOXES["HGX H100"]


def on_leaves(free, count, *, pack=True, seed=0):
    """Return the leaf switches of the nodes of a job in rank order, with so many free nodes on each leaf switch."""
    leaves = [leaf for leaf, nodes in enumerate(free) for _ in range(nodes)]
    Random(seed).shuffle(leaves)  # noqa: S311
    nodes = [BOX.candidate(f"n{number}", leaf=f"leaf{leaf}") for number, leaf in enumerate(leaves)]
    return place(nodes, Request(8, count, pack=pack)).leaves


def test_an_all_to_all_of_equal_nodes_crosses_few_leaf_switches():
    """Fifteen nodes need two leaf switches; 14 and 1 have fewer pairs between them than 10 and 5."""
    assert sorted(on_leaves((10, 10, 14, 1), 15)) == ["leaf2"] * 14 + ["leaf3"]


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("free", [(3, 3, 2, 1), (4, 1, 1, 2), (2, 2, 2, 2), (4, 3, 3, 1)], ids=str)
def test_no_choice_of_equal_nodes_has_less_traffic_between_leaf_switches(free, pack):
    """For jobs of every size, whatever the nodes are called: a ring first, then an all-to-all."""
    for count in range(1, sum(free) + 1):
        leaves = on_leaves(free, count, pack=pack, seed=count)
        runs = [len(list(run)) for _, run in groupby(leaves)]
        choices = [some for some in product(*(range(most + 1) for most in free)) if sum(some) == count]
        best = min((sum(map(bool, some)), -sum(nodes**2 for nodes in some)) for some in choices)

        assert (len(runs), -sum(nodes**2 for nodes in runs)) == best, (count, leaves)
