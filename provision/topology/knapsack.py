"""The cheapest allocation of a number of GPUs from nodes that each give some or none.

Costs are integers that encode several criteria, the most important in the highest digits, so that adding two costs adds
each criterion. Choices that no cheapest allocation contains are removed first, which decides most nodes; dynamic
programming over nodes and totals decides the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from provision.topology.bounds import Bounds, Choices, Offer

_IMPOSSIBLE = 1 << 400
"""Far more than any cost. Costs may be negative, so sums are compared with half of it."""


def cheapest(
    leaves: Sequence[Sequence[Offer]], total: int, leaf_cost: int, *, at_most: int | None = None
) -> int | None:
    """Return the least cost of allocating `total` GPUs, or None if it is impossible.

    Args:
        leaves: offers of the nodes of each leaf switch.
        total: number of GPUs to allocate.
        leaf_cost: cost of using one more leaf switch, at least 0.
        at_most: upper limit of the cost.
    """
    bounds = Bounds(leaves, total, leaf_cost)
    if not bounds.enough:
        return None
    if bounds.least_cost == bounds.known_cost:
        return bounds.known_cost if at_most is None or bounds.known_cost <= at_most else None
    for rest, limit in _rests(bounds, at_most):
        cost = rest.least(limit)
        if cost is not None:
            return cost
    return None


def picks(
    leaves: Sequence[Sequence[Offer]],
    total: int,
    leaf_cost: int,
    *,
    at_most: int | None = None,
    most: tuple[int, int] | None = None,
) -> list[int] | None:
    """Return the number of GPUs of each node in the cheapest allocation, or None if there is none.

    Among equal allocations, the first node is preferred, then the second and so on, and earlier offers first.

    Args:
        leaves: offers of the nodes of each leaf switch; equal nodes share an offer.
        total: number of GPUs to allocate.
        leaf_cost: cost of using one more leaf switch, at least 0.
        at_most: upper limit of the cost.
        most: upper limits of the nodes and of the leaf switches that a cheapest allocation uses.
    """
    if most is not None:
        return _first_of_equals(leaves, total, leaf_cost, at_most, most)
    for rest, limit in _rests(Bounds(leaves, total, leaf_cost), at_most):
        counts = rest.picks(limit)
        if counts is not None:
            return counts
    return None


def _first_of_equals(
    leaves: Sequence[Sequence[Offer]], total: int, leaf_cost: int, at_most: int | None, most: tuple[int, int]
) -> list[int] | None:
    """Return `picks` without the nodes and leaf switches whose equals come first, in a number that suffices.

    An allocation that uses one of them instead of an unused equal is not the first one of its cost.
    """
    most_nodes, most_leaves = most
    equal_leaves: Counter[tuple[int, ...]] = Counter()
    used: list[list[Offer]] = []
    places: list[int] = []
    first = 0
    for leaf in leaves:
        kind = tuple(map(id, leaf))
        equal_leaves[kind] += 1
        if equal_leaves[kind] <= most_leaves:
            equal_nodes: Counter[int] = Counter()
            own = []
            for at, offer in enumerate(leaf, first):
                equal_nodes[id(offer)] += 1
                if equal_nodes[id(offer)] <= most_nodes:
                    own.append(offer)
                    places.append(at)
            used.append(own)
        first += len(leaf)
    some = picks(used, total, leaf_cost, at_most=at_most)
    if some is None:
        return None
    counts = [0] * first
    for at, count in zip(places, some, strict=True):
        counts[at] = count
    return counts


def _rests(bounds: Bounds, at_most: int | None) -> Iterator[tuple[_Rest, int | None]]:
    """Yield the undecided part and a cost limit; the next pair has a higher limit in case the first has no result."""
    rests = [(rest, limit) for limit in bounds.limits(at_most) if (rest := _Rest.of(bounds, limit)) is not None]
    for number, (rest, limit) in enumerate(rests):
        if number == len(rests) - 1 or rest.open < rests[-1][0].open:
            yield rest, limit


@dataclass(frozen=True)
class _Node:
    """The least number of GPUs of a node with its cost, and the further choices relative to it, in order of preference.

    Zero further GPUs is one of the choices, and the only one if the node is decided.
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
    """The nodes of a leaf switch, and whether one of them certainly gives a GPU."""

    nodes: Sequence[_Node]
    used: bool


@dataclass(frozen=True)
class _Table:
    """The least cost of each total from `low` on, for the nodes from one on.

    `fresh` applies while the leaf switch of that node is unused, `opened` once it is used.
    """

    low: int
    fresh: list[int]
    opened: list[int]

    def cost(self, total: int, *, opened: bool) -> int:
        costs = self.opened if opened else self.fresh
        return costs[total - self.low] if 0 <= total - self.low < len(costs) else _IMPOSSIBLE


@dataclass(frozen=True)
class _Rest:
    """The undecided part: `total` GPUs from the undecided nodes, in addition to `cost` of the decided ones."""

    leaves: Sequence[_Leaf]
    total: int
    cost: int
    leaf_cost: int

    @classmethod
    def of(cls, bounds: Bounds, at_most: int | None) -> _Rest | None:
        """Remove the choices that no allocation of at most this cost contains; None if there is no such allocation."""
        useful_choices = bounds.useful(at_most)
        if useful_choices is None:
            return None
        undecided: list[_Leaf] = []
        for leaf in useful_choices:
            node_by_choices = {id(choices): _Node.of(choices) for choices in leaf}
            nodes = [node_by_choices[id(choices)] for choices in leaf]
            undecided.append(_Leaf(nodes, any(node.least[0] for node in nodes)))
        decided = [node.least for leaf in undecided for node in leaf.nodes]
        total = bounds.total - sum(number for number, _ in decided)
        cost = sum(own for _, own in decided) + bounds.leaf_cost * sum(leaf.used for leaf in undecided)
        return cls(undecided, total, cost, bounds.leaf_cost) if total >= 0 else None

    @property
    def open(self) -> int:
        """Return the number of remaining choices."""
        return sum(len(node.more) for leaf in self.leaves for node in leaf.nodes)

    def least(self, at_most: int | None) -> int | None:
        """Return the least total cost, or None if it exceeds `at_most`."""
        last = None
        for table in self._tables():
            last = table
        return self._cost(last, at_most)

    def picks(self, at_most: int | None) -> list[int] | None:
        """Return the number of GPUs of each node, or None if the cost exceeds `at_most`."""
        tables = list(self._tables())
        if self._cost(tables[-1] if tables else None, at_most) is None:
            return None
        counts: list[int] = []
        total = self.total
        for leaf in self.leaves:
            opened, table_here = leaf.used, tables.pop()
            for node in leaf.nodes:
                more = 0
                if not node.settled:
                    cost, table_here = table_here.cost(total, opened=opened), tables.pop()
                    more = self._chosen(node, table_here, total, cost, opened=opened)
                counts.append(node.least[0] + more)
                total, opened = total - more, opened or bool(more)
        return counts

    def _cost(self, first: _Table | None, at_most: int | None) -> int | None:
        """Return the least cost according to the table of the first node, or None if it exceeds `at_most`."""
        more = _IMPOSSIBLE if first is None else first.cost(self.total, opened=self.leaves[0].used)
        too_much = at_most is not None and self.cost + more > at_most
        return None if too_much or more >= _IMPOSSIBLE >> 1 else self.cost + more

    def _chosen(self, node: _Node, after: _Table, total: int, cost: int, *, opened: bool) -> int:
        """Return the node's first choice that achieves the least cost; 0 if no positive one does."""
        for number, own in node.more:
            extra = 0 if opened or not number else self.leaf_cost
            if after.cost(total - number, opened=opened or bool(number)) + own + extra == cost:
                return number
        return 0

    def _tables(self) -> Iterator[_Table]:
        """Yield the tables from the last undecided node to the first, and one more after each leaf switch.

        Yield nothing if the nodes cannot give enough.
        """
        unsettled = (node.more for leaf in self.leaves for node in leaf.nodes if not node.settled)
        most = accumulate((max(number for number, _ in more) for more in unsettled), initial=0)
        lows = [max(0, self.total - before) for before in most]  # the least that the nodes from one on have to give
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
        """Return the table with one more node in front."""
        behind = low - after.low
        with_more = _with_one_of([choice for choice in node.more if choice[0]], after, (low, self.total))
        opened = _lower(after.opened[behind:], with_more, 0)
        fresh = _lower(after.fresh[behind:], with_more, self.leaf_cost) if self.leaf_cost else opened
        return _Table(low, fresh, opened)


def _with_one_of(offers: Choices, after: _Table, span: tuple[int, int]) -> list[int]:
    """Return the least cost of each total within `span` with one of the node's offers, if its leaf switch is in use."""
    low, high = span
    end = after.low + len(after.opened)
    best = [_IMPOSSIBLE] * (min(high + 1, end + max(number for number, _ in offers)) - low)
    for number, cost in offers:
        first, shift = max(low, after.low + number), number + after.low
        other = after.opened[first - shift : max(0, high + 1 - shift)]
        at = first - low
        table_here = best[at : at + len(other)]
        best[at : at + len(other)] = [
            a if a <= (b := old + cost) else b for a, old in zip(table_here, other, strict=True)
        ]
    return best


def _lower(without: Sequence[int], with_more: Sequence[int], extra: int) -> list[int]:
    """Return the lower of two costs for each total, after adding `extra` to the second."""
    both = [a if a <= (b := other + extra) else b for a, other in zip(without, with_more, strict=False)]
    return both + [other + extra for other in with_more[len(without) :]]
