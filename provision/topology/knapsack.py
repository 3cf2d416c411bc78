"""The cheapest way to put a number of GPUs together from nodes, each of which gives some or none.

Costs are integers that hold several criteria, the weightiest on top; so the sum of two is both, criterion by criterion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["Offer", "cheapest", "picks"]

_IMPOSSIBLE = 1 << 400
"""Far more than any cost; costs may be below zero, so that nothing is compared with this itself."""

Offer = Sequence[tuple[int, int]]
"""What a node may give: number and cost, in the order in which equal ones are preferred."""


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


def cheapest(leaves: Sequence[Sequence[Offer]], total: int, leaf_cost: int) -> int | None:
    """Return the least cost of `total`; None where nothing adds up to it.

    Args:
        leaves: leaf switch by leaf switch the offers of its nodes.
        total: how many are needed.
        leaf_cost: what using a leaf switch costs by itself.
    """
    cost = _IMPOSSIBLE
    for table in _tables(leaves, total, leaf_cost):
        cost = table.cost(total, opened=False)
    return cost if cost < _IMPOSSIBLE >> 1 else None


def picks(leaves: Sequence[Sequence[Offer]], total: int, leaf_cost: int) -> list[int] | None:
    """Return what each node gives in the cheapest way, 0 for nothing; None where nothing adds up.

    Of equal ways the one that uses the first node is taken, then the second and so on, and earlier offers first.
    """
    tables = list(_tables(leaves, total, leaf_cost))
    if not tables or tables[-1].cost(total, opened=False) >= _IMPOSSIBLE >> 1:
        return None
    given: list[int] = []
    for leaf in leaves:
        opened = False
        here = tables.pop()
        for offer in leaf:
            after = tables.pop()
            rest = here.cost(total, opened=opened) - (0 if opened else leaf_cost)
            equal = (number for number, own in offer if after.cost(total - number, opened=True) + own == rest)
            given.append(next(equal, 0))
            opened = opened or bool(given[-1])
            total -= given[-1]
            here = after
    return given


def _tables(leaves: Sequence[Sequence[Offer]], total: int, leaf_cost: int) -> Iterator[_Table]:
    """Yield the tables from behind the last node to the first, one more behind each leaf; none where all is too few."""
    most = accumulate((max((number for number, _ in offer), default=0) for leaf in leaves for offer in leaf), initial=0)
    lows = [max(0, total - before) for before in most]  # what the nodes from one on have to give, at least
    if lows[-1]:
        return
    table = _Table(0, [0], [0])
    for leaf in reversed(leaves):
        table = _Table(table.low, table.fresh, table.fresh)
        yield table
        for offer in reversed(leaf):
            lows.pop()
            table = _with_node(table, offer, total, leaf_cost, lows[-1])
            yield table


def _with_node(after: _Table, offer: Offer, total: int, leaf_cost: int, low: int) -> _Table:
    """Put a node before those of a table."""
    opened = _least(after, after.opened, offer, (low, total), 0)
    fresh = _least(after, after.fresh, offer, (low, total), leaf_cost) if leaf_cost else opened
    return _Table(low, fresh, opened)


def _least(after: _Table, without: Sequence[int], offer: Offer, span: tuple[int, int], extra: int) -> list[int]:
    """Return the least cost of each total within `span`, without the node or with one of its offers."""
    low, high = span
    end = after.low + len(after.opened)
    best = list(without[low - after.low :])
    best += [_IMPOSSIBLE] * (min(high + 1, end + max((number for number, _ in offer), default=0)) - low - len(best))
    for number, own in offer:
        first, cost, shift = max(low, after.low + number), own + extra, number + after.low
        other = [old + cost for old in after.opened[first - shift : max(0, high + 1 - shift)]]
        at = first - low
        here = best[at : at + len(other)]
        best[at : at + len(other)] = [a if a <= b else b for a, b in zip(here, other, strict=True)]  # noqa: FURB136 - twice as fast
    return best
