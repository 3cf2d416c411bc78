"""The cheapest way to put a number of GPUs together from nodes, each of which gives some or none.

Costs are integers that hold several criteria, the weightiest on top; so the sum of two is both, criterion by criterion.
What no cheapest way contains is left out first, and most nodes are settled by that; among the rest all ways are tried,
node by node and total by total.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from provision.topology.bounds import Bounds, Choices, Offer

__all__ = ["Offer", "cheapest", "picks"]

_IMPOSSIBLE = 1 << 400
"""Far more than any cost; costs may be below zero, so that nothing is compared with this itself."""


def cheapest(
    leaves: Sequence[Sequence[Offer]], total: int, leaf_cost: int, *, at_most: int | None = None
) -> int | None:
    """Return the least cost of `total`; None where nothing adds up to it.

    Args:
        leaves: leaf switch by leaf switch the offers of its nodes.
        total: how many are needed.
        leaf_cost: what using a leaf switch costs by itself, at least 0.
        at_most: ways that cost more do not count.
    """
    for rest, limit in _rests(leaves, total, leaf_cost, at_most):
        cost = rest.least(limit)
        if cost is not None:
            return cost
    return None


def picks(
    leaves: Sequence[Sequence[Offer]], total: int, leaf_cost: int, *, at_most: int | None = None
) -> list[int] | None:
    """Return what each node gives in the cheapest way, 0 for nothing; None where nothing adds up.

    Of equal ways the one that uses the first node is taken, then the second and so on, and earlier offers first.
    """
    for rest, limit in _rests(leaves, total, leaf_cost, at_most):
        given = rest.picks(limit)
        if given is not None:
            return given
    return None


def _rests(
    leaves: Sequence[Sequence[Offer]], total: int, leaf_cost: int, at_most: int | None
) -> Iterator[tuple[_Rest, int | None]]:
    """Yield what is to be decided and what it may cost; the next one where nothing costs so little."""
    bounds = Bounds(leaves, total, leaf_cost)
    limits = bounds.limits() if at_most is None else [at_most]
    rests = [(rest, limit) for limit in limits if (rest := _Rest.of(bounds, limit)) is not None]
    for number, (rest, limit) in enumerate(rests):
        if number == len(rests) - 1 or rest.open < rests[-1][0].open:
            yield rest, limit


@dataclass(frozen=True)
class _Node:
    """What a node gives at least, and its cost; and what it may give and cost more, in the order of preference.

    Nothing more is one of the latter, and the only one where the node is settled.
    """

    least: tuple[int, int]
    more: Choices

    @classmethod
    def of(cls, choices: Choices) -> _Node:
        number, cost = min(choices)
        return cls((number, cost), [(other - number, own - cost) for other, own in choices])

    @property
    def settled(self) -> bool:
        return len(self.more) == 1


@dataclass(frozen=True)
class _Leaf:
    """The nodes of a leaf switch, and whether one of them surely gives something."""

    nodes: Sequence[_Node]
    used: bool


@dataclass(frozen=True)
class _Table:
    """The least cost of each total, from `low` on, by the nodes from one on.

    Twice: as long as the leaf switch of that node is not in use, and once it is.
    """

    low: int
    fresh: list[int]
    opened: list[int]

    def cost(self, total: int, *, opened: bool) -> int:
        costs = self.opened if opened else self.fresh
        return costs[total - self.low] if 0 <= total - self.low < len(costs) else _IMPOSSIBLE


@dataclass(frozen=True)
class _Rest:
    """What is still to be decided: so many more from the nodes that are not settled, at a cost beyond what is."""

    leaves: Sequence[_Leaf]
    total: int
    cost: int
    leaf_cost: int

    @classmethod
    def of(cls, bounds: Bounds, at_most: int | None) -> _Rest | None:
        """Leave out what no way of at most this cost contains; None where nothing adds up."""
        kept = bounds.useful(at_most)
        if kept is None:
            return None
        found: list[_Leaf] = []
        for leaf in kept:
            known = {id(choices): _Node.of(choices) for choices in leaf}
            nodes = [known[id(choices)] for choices in leaf]
            found.append(_Leaf(nodes, any(node.least[0] for node in nodes)))
        surely = [node.least for leaf in found for node in leaf.nodes]
        total = bounds.total - sum(number for number, _ in surely)
        cost = sum(own for _, own in surely) + bounds.leaf_cost * sum(leaf.used for leaf in found)
        return cls(found, total, cost, bounds.leaf_cost) if total >= 0 else None

    @property
    def open(self) -> int:
        """How many choices there are."""
        return sum(len(node.more) for leaf in self.leaves for node in leaf.nodes)

    def least(self, at_most: int | None) -> int | None:
        """Return the least cost of all; None where nothing adds up to `at_most`."""
        last = None
        for table in self._tables():
            last = table
        return self._cost(last, at_most)

    def picks(self, at_most: int | None) -> list[int] | None:
        """Return what each node gives; None where nothing adds up to `at_most`."""
        tables = list(self._tables())
        if self._cost(tables[-1] if tables else None, at_most) is None:
            return None
        given: list[int] = []
        total = self.total
        for leaf in self.leaves:
            opened, here = leaf.used, tables.pop()
            for node in leaf.nodes:
                more = 0
                if not node.settled:
                    cost, here = here.cost(total, opened=opened), tables.pop()
                    more = self._chosen(node, here, total, cost, opened=opened)
                given.append(node.least[0] + more)
                total, opened = total - more, opened or bool(more)
        return given

    def _cost(self, first: _Table | None, at_most: int | None) -> int | None:
        """Return the least cost by the table of the first node, unless that is too much."""
        more = _IMPOSSIBLE if first is None else first.cost(self.total, opened=self.leaves[0].used)
        too_much = at_most is not None and self.cost + more > at_most
        return None if too_much or more >= _IMPOSSIBLE >> 1 else self.cost + more

    def _chosen(self, node: _Node, after: _Table, total: int, cost: int, *, opened: bool) -> int:
        """Return the first of the node's choices that makes the least cost; where no other does, nothing more does."""
        for number, own in node.more:
            extra = 0 if opened or not number else self.leaf_cost
            if after.cost(total - number, opened=opened or bool(number)) + own + extra == cost:
                return number
        return 0

    def _tables(self) -> Iterator[_Table]:
        """Yield the tables from behind the last open node to the first, one more behind each leaf.

        None when all that the nodes can give is too little.
        """
        unsettled = (node.more for leaf in self.leaves for node in leaf.nodes if not node.settled)
        most = accumulate((max(number for number, _ in more) for more in unsettled), initial=0)
        lows = [max(0, self.total - before) for before in most]  # what the nodes from one on have to give, at least
        if lows[-1]:
            return
        table, used = _Table(0, [0], [0]), True
        for leaf in reversed(self.leaves):
            behind = table.opened if used else table.fresh
            table, used = _Table(table.low, behind, behind), leaf.used
            yield table
            for node in reversed(leaf.nodes):
                if not node.settled:
                    lows.pop()
                    table = self._with_node(table, node, lows[-1])
                    yield table

    def _with_node(self, after: _Table, node: _Node, low: int) -> _Table:
        """Put a node before those of a table."""
        behind = low - after.low
        with_more = _with_one_of([choice for choice in node.more if choice[0]], after, (low, self.total))
        opened = _lower(after.opened[behind:], with_more, 0)
        fresh = _lower(after.fresh[behind:], with_more, self.leaf_cost) if self.leaf_cost else opened
        return _Table(low, fresh, opened)


def _with_one_of(offers: Choices, after: _Table, span: tuple[int, int]) -> list[int]:
    """Return the least cost of each total within `span`, with one of the offers of a node whose leaf is in use."""
    low, high = span
    end = after.low + len(after.opened)
    best = [_IMPOSSIBLE] * (min(high + 1, end + max(number for number, _ in offers)) - low)
    for number, cost in offers:
        first, shift = max(low, after.low + number), number + after.low
        other = after.opened[first - shift : max(0, high + 1 - shift)]
        at = first - low
        here = best[at : at + len(other)]
        best[at : at + len(other)] = [a if a <= (b := old + cost) else b for a, old in zip(here, other, strict=True)]
    return best


def _lower(without: Sequence[int], with_more: Sequence[int], extra: int) -> list[int]:
    """Return the lower of two costs of each total; the second is `extra` higher than it says."""
    both = [a if a <= (b := other + extra) else b for a, other in zip(without, with_more, strict=False)]
    return both + [other + extra for other in with_more[len(without) :]]
