"""Lower bounds on the cost of a GPU allocation, which rule out offers that no cheapest allocation contains.

Every GPU gets the same price: the one with the highest bound, at which the best choices add up to the total (the
Lagrange multiplier of the relaxed problem). The cost of these choices beyond the price of their GPUs, summed over the
leaf switches and nodes, is a lower bound for every allocation. A choice that exceeds its node's best by more than the
gap between this bound and the cost of a known allocation is in no cheapest allocation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

Offer = Sequence[tuple[int, int]]
"""Number of GPUs and cost of each option of a node, in order of preference among equal ones."""
Choices = Sequence[tuple[int, int]]
"""An offer and ``(0, 0)`` at its end, or a subset of that."""
_FRACTIONS = 1 << 20
"""Prices contain a share of the cost of a leaf switch, so they are fractions of costs, down to about this part."""
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
        self._counts = [Counter(map(id, leaf)) for leaf in leaves]
        self._steps = _Steps(self._kinds)
        relaxed = self._best_price()
        self.enough = relaxed is not None
        """Whether the nodes have `total` GPUs."""
        self._relaxed = relaxed or self._at(0)

    @property
    def least_cost(self) -> int:
        """Return a lower bound of the cost of every allocation."""
        return -(-self._relaxed.least // self._steps.unit)

    @cached_property
    def known_cost(self) -> int | None:
        """The cost of the cheapest of two allocations that are easy to find; None if there is neither."""
        return min((cost for cost in (self._by_steps(), self._by_leaves()) if cost is not None), default=None)

    def limits(self, at_most: int | None) -> list[int | None]:
        """Return cost limits to try in turn: one that usually suffices, then the cost of a known allocation.

        ``[None]`` means that no allocation is known, so the cost is not limited. `at_most` is an upper limit of all.
        """
        if self.known_cost is None or (at_most is not None and at_most <= self.known_cost):
            return [at_most]
        return [(self.least_cost + self.known_cost) // 2, self.known_cost]

    def _best_price(self) -> _Relaxed | None:
        """Return the bounds at the price with the highest total bound, or None if there are too few GPUs.

        The total bound is concave in the price, and its slope is the number of GPUs that are missing at this price.
        Where the tangents of a price below and one above meet, the next price is tried.
        """
        most = (max((abs(cost) for choices in self._kinds.values() for _, cost in choices), default=0) + 1) * 2
        far = self._steps.unit * (most + self.leaf_cost)
        low, high = self._at(-far), self._at(far)
        if high.missing > 0:
            return None
        while low.missing > 0 > high.missing:
            meet = high.least - low.least + low.missing * low.price - high.missing * high.price
            middle = self._at(meet // (low.missing - high.missing))
            if middle.price <= low.price or middle.missing in {low.missing, high.missing}:
                return max(low, middle, high, key=lambda one: one.least)
            low, high = (middle, high) if middle.missing > 0 else (low, middle)
        return max(low, high, key=lambda one: one.least)

    def _at(self, price: int) -> _Relaxed:
        """Return the bounds at a price per GPU, in units of 1/`unit`."""
        unit, leaf_cost = self._steps.unit, self._steps.unit * self.leaf_cost
        excess = {
            kind: [unit * cost - price * number for number, cost in choices] for kind, choices in self._kinds.items()
        }
        best = {
            kind: min(zip(own, (number for number, _ in self._kinds[kind]), strict=True))
            for kind, own in excess.items()
        }
        used = [leaf_cost + sum(best[kind][0] * count for kind, count in leaf.items()) for leaf in self._counts]
        given = [sum(best[kind][1] * count for kind, count in leaf.items()) for leaf in self._counts]
        taken = sum(number for cost, number in zip(used, given, strict=True) if cost < 0)
        least = price * self.total + sum(min(0, cost) for cost in used)
        return _Relaxed(price, excess, used, least, self.total - taken)

    def useful(self, at_most: int | None) -> list[list[Choices]] | None:
        """Return the choices of each node in allocations of at most this cost; None if there is no such allocation."""
        if not self.enough:
            return None
        if at_most is None:
            return [[self._kinds[id(offer)] for offer in leaf] for leaf in self.leaves]
        slack = self._steps.unit * at_most - self._relaxed.least
        if slack < 0:
            return None
        return [self._within(slack, leaf, used) for leaf, used in zip(self.leaves, self._relaxed.used, strict=True)]

    def _within(self, slack: int, leaf: Sequence[Offer], used: int) -> list[Choices]:
        """Return the choices of the nodes of a leaf switch that exceed the bound by at most `slack`."""
        most = slack + min(0, used)
        useful_choices: dict[int, Choices] = {}
        for kind in {id(offer) for offer in leaf}:
            excess = self._relaxed.excess[kind]
            others = used - min(excess)
            rows = zip(self._kinds[kind], excess, strict=True)
            useful_choices[kind] = [one for one, own in rows if (others + own if one[0] else min(0, others)) <= most]
        return [useful_choices[id(offer)] for offer in leaf]

    # Known allocations

    def _by_steps(self) -> int | None:
        """Return the cost of taking the cheapest steps of all nodes; None if they do not add up to the total."""
        return self._cost(self._steps.taken([id(offer) for leaf in self.leaves for offer in leaf], self.total))

    def _by_leaves(self) -> int | None:
        """Return the cost of taking GPUs up to the price, then at any price, from the cheapest leaf switches first."""
        kinds = [[id(offer) for offer in leaf] for leaf in self.leaves]
        given = [[0] * len(leaf) for leaf in self.leaves]
        order = sorted(range(len(self.leaves)), key=lambda number: self._relaxed.used[number])
        left = self.total
        for price in (self._relaxed.price, None):
            for number in order:
                if left:
                    left += sum(given[number])
                    given[number] = self._steps.taken(kinds[number], left, price)
                    left -= sum(given[number])
        return self._cost([has for leaf in given for has in leaf])

    def _cost(self, given: list[int]) -> int | None:
        """Return the cost of an allocation, after adjusting one node to match the total; None if none can be."""
        nodes = [(number, id(offer)) for number, leaf in enumerate(self.leaves) for offer in leaf]
        costs = {kind: dict(choices) for kind, choices in self._kinds.items()}
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


@dataclass(frozen=True)
class _Relaxed:
    """Bounds at one price per GPU; prices and costs are in units of 1/`unit`."""

    price: int
    excess: Mapping[int, Sequence[int]]
    """Cost of the choices of each kind of node beyond the price of their GPUs."""
    used: Sequence[int]
    """The least cost of each leaf switch when it is used; an unused one costs nothing."""
    least: int
    """The bound of all allocations."""
    missing: int
    """Total minus the GPUs of the best choices."""


class _Steps:
    """The steps by which nodes add GPUs at the least cost; a step's price per GPU is in units of 1/`unit`."""

    def __init__(self, kinds: _Kinds) -> None:
        hulls = {kind: _hull(choices) for kind, choices in kinds.items()}
        sizes = {b[0] - a[0] for hull in hulls.values() for a, b in pairwise(hull)}
        self.unit = math.lcm(*sizes) * _FRACTIONS
        self._steps = {
            kind: [((b[1] - a[1]) * (self.unit // (b[0] - a[0])), b[0] - a[0]) for a, b in pairwise(hull)]
            for kind, hull in hulls.items()
        }

    def taken(self, nodes: Sequence[int], total: int, price: int | None = None) -> list[int]:
        """Return the GPUs of each node when the cheapest steps that fit into the total are used, up to a price."""
        steps = (
            (price, at, index, size)
            for at, kind in enumerate(nodes)
            for index, (price, size) in enumerate(self._steps[kind])
        )
        given, taken_steps = [0] * len(nodes), [0] * len(nodes)
        for own, at, index, size in sorted(steps):
            if price is not None and own > price:
                break
            if size <= total and taken_steps[at] == index:
                given[at], taken_steps[at], total = given[at] + size, index + 1, total - size
        return given


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
