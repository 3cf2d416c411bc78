"""The cheapest allocation, compared with an exhaustive search."""

from __future__ import annotations

from itertools import product
from random import Random

from provision.topology.knapsack import cheapest, picks


def some_leaves(chance):
    """Up to three leaf switches with up to three nodes, each of which offers up to three numbers at some cost.

    Nodes that are alike share their offer.
    """

    def offer():
        return [(number, chance.randint(-3, 4)) for number in chance.sample(range(1, 5), chance.randint(0, 3))]

    kinds = [offer() for _ in range(chance.randint(1, 6))]
    return [[chance.choice(kinds) for _ in range(chance.randint(0, 3))] for _ in range(chance.randint(1, 3))]


def by_trying(leaves, total, leaf_cost):
    """Return cost and numbers of the cheapest allocation, preferring earlier nodes and offers, or None."""
    offers = [offer for leaf in leaves for offer in leaf]
    where = [number for number, leaf in enumerate(leaves) for _ in leaf]
    allocations = []
    for allocation in product(*([*offer, (0, 0)] for offer in offers)):
        if sum(number for number, _ in allocation) == total:
            used = {leaf for leaf, (number, _) in zip(where, allocation, strict=True) if number}
            order = [[*offer, (0, 0)].index(one) for offer, one in zip(offers, allocation, strict=True)]
            skipped = [number if one[0] else 9 for number, one in zip(order, allocation, strict=True)]
            allocations.append(
                (
                    sum(cost for _, cost in allocation) + leaf_cost * len(used),
                    skipped,
                    [number for number, _ in allocation],
                )
            )
    return min(allocations, default=None)


def test_the_first_of_the_cheapest_allocations_is_returned():
    """Costs may be below zero, leaf switches may cost something, and nothing may add up."""
    chance = Random(1)  # noqa: S311
    for _ in range(100):
        leaves, total, leaf_cost = some_leaves(chance), chance.randint(1, 12), chance.choice([0, 1, 3])
        expected = by_trying(leaves, total, leaf_cost)

        assert cheapest(leaves, total, leaf_cost) == (expected[0] if expected else None)
        assert picks(leaves, total, leaf_cost) == (expected[2] if expected else None)


def test_allocations_above_the_cost_limit_are_ignored():
    """The limit itself is not too much."""
    chance = Random(2)  # noqa: S311
    for _ in range(100):
        leaves, total, leaf_cost = some_leaves(chance), chance.randint(1, 9), chance.choice([0, 2])
        expected = by_trying(leaves, total, leaf_cost)
        if expected is not None:
            least, _, numbers = expected

            assert cheapest(leaves, total, leaf_cost, at_most=least - 1) is None
            assert cheapest(leaves, total, leaf_cost, at_most=least) == least
            assert cheapest(leaves, total, leaf_cost, at_most=least + 2) == least
            assert picks(leaves, total, leaf_cost, at_most=least + 2) == numbers
