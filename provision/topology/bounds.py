"""What the cheapest ways to put GPUs together cannot contain, by what every way costs at least.

Every GPU is given the same price: the one at which the nodes' own best choices add up to the total (the Lagrange
multiplier of the relaxed problem). What these choices cost beyond the price of their GPUs, summed, is a bound that no
way is below. A choice that is dearer than its node's best by more than what a known way is above that bound is in no
cheapest way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

__all__ = ["Bounds", "Choices", "Offer"]

Offer = Sequence[tuple[int, int]]
"""What a node may give: number and cost, in the order in which equal ones are preferred."""
Choices = Sequence[tuple[int, int]]
"""The same and ``(0, 0)`` behind it, or what is left of that."""
_Kinds = Mapping[int, Choices]
"""By the identity of their offer, which equal nodes share."""


class Bounds:
    """What every way to put `total` GPUs together costs at least.

    Args:
        leaves: leaf switch by leaf switch the offers of its nodes.
        total: how many are needed.
        leaf_cost: what using a leaf switch costs by itself, at least 0.
    """

    def __init__(self, leaves: Sequence[Sequence[Offer]], total: int, leaf_cost: int) -> None:
        self.leaves, self.total, self.leaf_cost = leaves, total, leaf_cost
        self._kinds: _Kinds = {id(offer): [*offer, (0, 0)] for leaf in leaves for offer in leaf}
        self._prices = prices = _Prices(self._kinds, Counter(id(offer) for leaf in leaves for offer in leaf))
        price = prices.at(total)
        self.enough = price is not None
        """Whether the nodes have so many at all."""
        self._price = price or 0
        self._beyond = {
            kind: [prices.unit * cost - self._price * number for number, cost in choices]
            for kind, choices in self._kinds.items()
        }
        self._used = [prices.unit * leaf_cost + sum(min(self._beyond[id(offer)]) for offer in leaf) for leaf in leaves]
        """The least that each leaf switch costs once it is used; when it is not, it costs nothing."""
        self._least = self._price * total + sum(min(0, cost) for cost in self._used)

    def limits(self) -> list[int | None]:
        """Return a cost below which the cheapest way is as a rule, to look there first, and the cost of a known way.

        None: no way is known, and none may cost too much.
        """
        known = self._some_way()
        return [None] if known is None else [(self._least // self._prices.unit + known) // 2, known]

    def useful(self, at_most: int | None) -> list[list[Choices]] | None:
        """Return for each node the choices that ways of at most this cost may contain; None where there is no way."""
        if not self.enough:
            return None
        if at_most is None:
            return [[self._kinds[id(offer)] for offer in leaf] for leaf in self.leaves]
        slack = self._prices.unit * at_most - self._least
        if slack < 0:
            return None
        return [self._within(slack, leaf, used) for leaf, used in zip(self.leaves, self._used, strict=True)]

    def _within(self, slack: int, leaf: Sequence[Offer], used: int) -> list[Choices]:
        """Keep the choices of a leaf switch's nodes that take a way no further than `slack` above the bound."""
        most = slack + min(0, used)
        kept: dict[int, Choices] = {}
        for kind in {id(offer) for offer in leaf}:
            beyond = self._beyond[kind]
            others = used - min(beyond)
            rows = zip(self._kinds[kind], beyond, strict=True)
            kept[kind] = [one for one, own in rows if (others + own if one[0] else min(0, others)) <= most]
        return [kept[id(offer)] for offer in leaf]

    def _some_way(self) -> int | None:
        """Return the cost of a way that is likely a cheap one: steps by price, then one node made to fit.

        None without such a way.
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
    """The steps by which nodes give more at the least cost, and what a GPU costs in each, in fractions of `unit`."""

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
        """Return the price of the last of so many GPUs; None where there are not so many."""
        steps = [(price, size * self._counts[kind]) for kind, steps in self.steps.items() for price, size in steps]
        for price, size in sorted(steps):
            total -= size
            if total <= 0:
                return price
        return None


def _hull(choices: Choices) -> list[tuple[int, int]]:
    """Return the choices that are cheapest at some price, by number: the lower convex hull."""
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
    """Return what each node gives when the cheapest steps are taken, as far as they fit into the total."""
    steps = (
        (price, at, place, size)
        for at, kind in enumerate(nodes)
        for place, (price, size) in enumerate(prices.steps[kind])
    )
    given, taken = [0] * len(nodes), [0] * len(nodes)
    for _, at, place, size in sorted(steps):
        if size <= total and taken[at] == place:
            given[at], taken[at], total = given[at] + size, place + 1, total - size
    return given
