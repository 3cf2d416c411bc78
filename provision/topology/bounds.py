"""Lower bounds on the cost of a GPU allocation, which rule out offers that no cheapest allocation contains.

Every GPU gets the same price: the one at which the best choices of the nodes add up to the total (the Lagrange
multiplier of the relaxed problem). The cost of these choices beyond the price of their GPUs, summed over the nodes, is
a lower bound for every allocation. A choice that exceeds its node's best by more than the gap between this bound and
the cost of a known allocation is in no cheapest allocation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

Offer = Sequence[tuple[int, int]]
"""Number of GPUs and cost of each option of a node, in order of preference among equal ones."""
Choices = Sequence[tuple[int, int]]
"""An offer and ``(0, 0)`` at its end, or a subset of that."""
_Kinds = Mapping[int, Choices]
"""Choices by the identity of their offer, which equal nodes share."""


class Bounds:
    """Lower bounds on the cost of allocating `total` GPUs.

    Args:
        leaves: offers of the nodes of each leaf switch.
        total: number of GPUs to allocate.
        leaf_cost: cost of using one more leaf switch, at least 0.
    """

    def __init__(self, leaves: Sequence[Sequence[Offer]], total: int, leaf_cost: int) -> None:
        self.leaves, self.total, self.leaf_cost = leaves, total, leaf_cost
        self._kinds: _Kinds = {id(offer): [*offer, (0, 0)] for leaf in leaves for offer in leaf}
        self._prices = prices = _Prices(self._kinds, Counter(id(offer) for leaf in leaves for offer in leaf))
        price = prices.at(total)
        self.enough = price is not None
        """Whether the nodes have `total` GPUs."""
        self._price = price or 0
        self._excess = {
            kind: [prices.unit * cost - self._price * number for number, cost in choices]
            for kind, choices in self._kinds.items()
        }
        self._used = [prices.unit * leaf_cost + sum(min(self._excess[id(offer)]) for offer in leaf) for leaf in leaves]
        """The least cost of each leaf switch when it is used; an unused one costs nothing."""
        self._least = self._price * total + sum(min(0, cost) for cost in self._used)

    def limits(self) -> list[int | None]:
        """Return cost limits to try in turn: one that usually suffices, then the cost of a known allocation.

        ``[None]`` means that no allocation is known, so the cost is not limited.
        """
        known_cost = self._heuristic_cost()
        return [None] if known_cost is None else [(self._least // self._prices.unit + known_cost) // 2, known_cost]

    def useful(self, at_most: int | None) -> list[list[Choices]] | None:
        """Return the choices of each node in allocations of at most this cost; None if there is no such allocation."""
        if not self.enough:
            return None
        if at_most is None:
            return [[self._kinds[id(offer)] for offer in leaf] for leaf in self.leaves]
        slack = self._prices.unit * at_most - self._least
        if slack < 0:
            return None
        return [self._within(slack, leaf, used) for leaf, used in zip(self.leaves, self._used, strict=True)]

    def _within(self, slack: int, leaf: Sequence[Offer], used: int) -> list[Choices]:
        """Return the choices of the nodes of a leaf switch that exceed the bound by at most `slack`."""
        most = slack + min(0, used)
        useful_choices: dict[int, Choices] = {}
        for kind in {id(offer) for offer in leaf}:
            excess = self._excess[kind]
            others = used - min(excess)
            rows = zip(self._kinds[kind], excess, strict=True)
            useful_choices[kind] = [one for one, own in rows if (others + own if one[0] else min(0, others)) <= most]
        return [useful_choices[id(offer)] for offer in leaf]

    def _heuristic_cost(self) -> int | None:
        """Return the cost of one cheap allocation, or None if the heuristic finds none.

        It takes the cheapest steps, then adjusts one node to match the total.
        """
        nodes = [(number, id(offer)) for number, leaf in enumerate(self.leaves) for offer in leaf]
        costs = {kind: dict(choices) for kind, choices in self._kinds.items()}
        given = _by_price([kind for _, kind in nodes], self._prices, self.total)
        missing = self.total - sum(given)
        if missing:
            changes = [
                (costs[kind][has + missing] - costs[kind][has], at)
                for at, ((_, kind), has) in enumerate(zip(nodes, given, strict=True))
                if has + missing in costs[kind]
            ]
            if not changes:
                return None
            given[min(changes)[1]] += missing
        used = {leaf for (leaf, _), has in zip(nodes, given, strict=True) if has}
        return sum(costs[kind][has] for (_, kind), has in zip(nodes, given, strict=True)) + self.leaf_cost * len(used)


class _Prices:
    """The steps by which nodes add GPUs at the least cost, and the price per GPU of each step in units of 1/`unit`."""

    def __init__(self, kinds: _Kinds, counts: Mapping[int, int]) -> None:
        hulls = {kind: _hull(choices) for kind, choices in kinds.items()}
        sizes = {b[0] - a[0] for hull in hulls.values() for a, b in pairwise(hull)}
        self.unit = math.lcm(*sizes)
        self.steps = {
            kind: [((b[1] - a[1]) * (self.unit // (b[0] - a[0])), b[0] - a[0]) for a, b in pairwise(hull)]
            for kind, hull in hulls.items()
        }
        self._counts = counts

    def at(self, total: int) -> int | None:
        """Return the price of the last of `total` GPUs, or None if there are fewer."""
        steps = [(price, size * self._counts[kind]) for kind, steps in self.steps.items() for price, size in steps]
        for price, size in sorted(steps):
            total -= size
            if total <= 0:
                return price
        return None


def _hull(choices: Choices) -> list[tuple[int, int]]:
    """Return the lower convex hull of the choices, ordered by number of GPUs."""
    hull: list[tuple[int, int]] = []
    for x, y in sorted(choices):
        while len(hull) > 1 and _above(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    return hull


def _above(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> bool:
    """Return whether `b` is on or above the line from `a` to `c`."""
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])


def _by_price(nodes: Sequence[int], prices: _Prices, total: int) -> list[int]:
    """Return the GPUs of each node when the cheapest steps that fit into the total are used."""
    steps = (
        (price, at, index, size)
        for at, kind in enumerate(nodes)
        for index, (price, size) in enumerate(prices.steps[kind])
    )
    given, taken_steps = [0] * len(nodes), [0] * len(nodes)
    for _, at, index, size in sorted(steps):
        if size <= total and taken_steps[at] == index:
            given[at], taken_steps[at], total = given[at] + size, index + 1, total - size
    return given
