"""Search for the best placement of a job on nodes, criterion by criterion.

Most criteria are sums over the nodes, which the knapsack minimises. Two are not: the bandwidth, which is that of the
slowest node, and the spread of the GPU counts. Each restricts the sets: by bisection over the bandwidths, and by
windows of counts, as far as the more important sums stay minimal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import groupby

from provision.topology.bounds import Offer
from provision.topology.cards import members
from provision.topology.knapsack import cheapest, picks
from provision.topology.leaf_pairs import exchange
from provision.topology.offers import Costs, FreeNode, OwnNics, Pick, Rate, Sum, sets
from provision.topology.score import SetScores


class Rule(IntEnum):
    """Criteria that are not sums."""

    BANDWIDTH = 100
    SPREAD = 101


Order = tuple[Sum | Rule, ...]
_LEFT_FREE = (Sum.LOST, Sum.NUMA_LEFT, Sum.BROKEN, Sum.FREE)
_BETWEEN = (Sum.NODES, Sum.LEAVES, Rule.SPREAD, Sum.PIX_NICS, Sum.NEAR_NICS, Sum.NUMA)
BALANCED: Order = (Rule.BANDWIDTH, *_BETWEEN, *_LEFT_FREE, Sum.WEIGHTS)
"""Leaf switches rank after the number of nodes and before the spread: one more node costs more than a hop over the
spine, and different counts cost nothing if the launcher accepts them (`Request.uniform` is for those that do not)."""
PACKED: Order = (
    *(Sum.NODES, Rule.BANDWIDTH, Sum.LEAVES, *_LEFT_FREE),
    *(Rule.SPREAD, Sum.PIX_NICS, Sum.NEAR_NICS, Sum.NUMA, Sum.WEIGHTS),
)
"""The fewest nodes first, so that a job that fits on one node never uses the network; then the bandwidth. Of equal
placements, the one whose GPUs are least useful to other jobs."""

Window = tuple[int, int]
Table = Mapping[int, Sequence[Pick]]
"""The sets that a node can give, by number of GPUs."""
Kind = tuple[SetScores, int, frozenset[int]]
"""Nodes with the same scores, free sets and excluded sets give the same sets."""
Known = dict[Kind, dict[int, list[Pick]]]


class Search:
    """Places GPUs on nodes, which are in rank order and grouped by leaf switch.

    Args:
        nodes: nodes that the job may use.
        total: number of GPUs.
        step: GPUs of a worker, which have to be on one node.
        windows: alternative ranges of GPUs per node.
        rate: bandwidth of a job that uses a set.
        own_nics: number of GPUs of a set that can have a card of their own, at PIX and at PIX or PXB.
        known: cache of sets, shared by searches with the same `rate` and `own_nics`.
    """

    def __init__(
        self,
        nodes: Sequence[FreeNode],
        total: int,
        step: int,
        windows: Sequence[Window],
        *,
        rate: Rate,
        own_nics: OwnNics,
        known: Known | None = None,
    ) -> None:
        self._nodes = nodes
        self._total = total
        self._step = step
        self._windows = list(windows)
        self._floor = 0
        """The least acceptable bandwidth so far."""
        self._known: tuple[int, Sum] | None = None
        """The least cost of the sums so far, and the last of them; narrowing preserves it."""
        most = max((high for _, high in windows), default=0)
        cached: Known = {} if known is None else known
        kinds: dict[Kind, Table] = {}
        for node in nodes:
            kind = (node.scores, node.free, node.barred)
            if kind not in kinds:
                picks_by_size = cached.setdefault(kind, {})
                sizes = range(step, min(most, node.free.bit_count()) + 1, step)
                picks_by_size.update(
                    {size: list(sets(node, size, rate, own_nics)) for size in sizes if size not in picks_by_size}
                )
                kinds[kind] = {size: picks_by_size[size] for size in sizes}
        self._tables = [kinds[node.scores, node.free, node.barred] for node in nodes]
        self._kinds = list(kinds.values())

    def best(self, order: Order) -> list[tuple[FreeNode, Pick]] | None:
        """Return the nodes of the best placement and the set of each; None if the job does not fit."""
        if not any(map(self._reached, self._windows)):
            return None
        sums: tuple[Sum, ...] = ()
        for rule in order:
            if rule is Rule.BANDWIDTH:
                self._raise_floor(sums)
            elif rule is Rule.SPREAD:
                self._narrow(sums)
            else:
                sums += (Sum(rule),)
        return exchange(self._nodes, self._placed(sums))

    def bandwidth(self) -> int | None:
        """Return the best possible bandwidth of the job; None if it does not fit."""
        if not any(map(self._reached, self._windows)):
            return None
        self._raise_floor(())
        return self._floor

    # Narrowing

    def _raise_floor(self, sums: tuple[Sum, ...]) -> None:
        """Raise the bandwidth limit as far as the least cost of `sums` allows."""
        rates = sorted({pick.rate for pick in self._all_picks()})
        least_cost = self._minimal(sums)
        low, high = 0, len(rates) - 1
        while low < high:
            middle = (low + high + 1) // 2
            self._floor = rates[middle]
            low, high = (middle, high) if self._least(sums, at_most=least_cost) == least_cost else (low, middle - 1)
        self._floor = rates[low]

    def _narrow(self, sums: tuple[Sum, ...]) -> None:
        """Restrict the windows to the smallest spread that the least cost of `sums` allows."""
        least_cost = self._minimal(sums)
        if least_cost is None:
            return
        nodes = self._costs(sums).count(Sum.NODES, least_cost)
        spreads: dict[int, list[Window]] = {}
        for window in self._windows:
            for low, high in self._parts(window):
                spreads.setdefault(high - low, []).append((low, high))
        for spread in sorted(spreads):
            likely = (window for window in dict.fromkeys(spreads[spread]) if self._likely(window, nodes))
            feasible = [window for window in likely if self._least(sums, [window], at_most=least_cost) == least_cost]
            if feasible:
                self._windows = feasible
                return

    def _parts(self, window: Window) -> Iterator[Window]:
        sizes = sorted({size for table in self._kinds for size in self._sizes(table, window)})
        yield from ((low, high) for low in sizes for high in sizes if low <= high)

    def _likely(self, window: Window, nodes: int) -> bool:
        """Return whether `nodes` nodes could add up to the total, judged by the least and the most that they give."""
        by_kind = {id(table): self._sizes(table, window) for table in self._kinds}
        offered = [sizes for table in self._tables if (sizes := by_kind[id(table)])]
        most = sum(sorted((max(sizes) for sizes in offered), reverse=True)[:nodes])
        return len(offered) >= nodes and sum(sorted(map(min, offered))[:nodes]) <= self._total <= most

    def _reached(self, window: Window) -> bool:
        """Return whether counts inside the window add up to the total; bit n of `sums` represents the sum n."""
        by_kind = {id(table): self._sizes(table, window) for table in self._kinds}
        within = (1 << self._total + 1) - 1
        sums = 1
        for table in self._tables:
            without = sums
            for size in by_kind[id(table)]:
                sums |= without << size
            sums &= within
        return bool(sums >> self._total)

    def _sizes(self, table: Table, window: Window) -> list[int]:
        low, high = window
        return [size for size in table if low <= size <= high and self._good(table[size])]

    def _good(self, candidates: Sequence[Pick]) -> list[Pick]:
        return [pick for pick in candidates if pick.rate >= self._floor]

    # Costs

    def _least(
        self, sums: tuple[Sum, ...], windows: Sequence[Window] | None = None, *, at_most: int | None = None
    ) -> int | None:
        """Return the least cost, 0 without sums; None if the job does not fit or exceeds `at_most`."""
        reached = [window for window in (self._windows if windows is None else windows) if self._reached(window)]
        if not sums:
            return 0 if reached else None
        costs, least = self._costs(sums), None
        at_most = self._limit(costs) if at_most is None else at_most
        for window in reached:
            leaves = self._leaves(self._offers(costs, window))
            cost = cheapest(leaves, self._total // self._step, self._leaf_cost(costs), at_most=at_most)
            if cost is not None:
                least = at_most = cost
        return least

    def _limit(self, costs: Costs) -> int | None:
        """Return an upper limit of the cost, from the least costs of the more important sums."""
        return None if self._known is None else costs.limit(*self._known)

    def _most_used(self, sums: tuple[Sum, ...]) -> tuple[int, int]:
        """Return how many nodes, and how many leaf switches the best placement uses, or upper limits of them."""
        limits = min(len(self._nodes), self._total // self._step), len({node.leaf for node in self._nodes})
        if self._known is None:
            return limits
        cost, last = self._known
        known = sums[: sums.index(last) + 1]
        costs = self._costs(known)
        nodes, leaves = (
            max(1, costs.count(which, cost)) if which in known else limit  # a single leaf switch costs nothing
            for which, limit in zip((Sum.NODES, Sum.LEAVES), limits, strict=True)
        )
        return nodes, leaves

    def _minimal(self, sums: tuple[Sum, ...]) -> int | None:
        """Return the least cost and record it; no later step raises it."""
        least_cost = self._least(sums)
        if sums and least_cost is not None:
            self._known = least_cost, sums[-1]
        return least_cost

    def _placed(self, sums: tuple[Sum, ...]) -> list[tuple[FreeNode, Pick]]:
        """Return the first placement of least cost, in the order of the nodes and GPUs."""
        costs = self._costs(sums)
        at_most, most = self._limit(costs), self._most_used(sums)
        placements: list[tuple[int, list[tuple[int, tuple[int, ...]]], list[tuple[FreeNode, Pick]]]] = []
        for window in self._windows:
            leaves = self._leaves(self._offers(costs, window))
            counts = picks(leaves, self._total // self._step, self._leaf_cost(costs), at_most=at_most, most=most)
            if counts is None:
                continue
            used = [
                (number, self._pick(number, count * self._step, costs)) for number, count in enumerate(counts) if count
            ]
            order = [(number, members(pick.mask)) for number, pick in used]
            total = sum(costs.of(pick) for _, pick in used)
            opened = len({self._nodes[number].leaf for number, _ in used}) * self._leaf_cost(costs)
            placements.append((total + opened, order, [(self._nodes[number], pick) for number, pick in used]))
        return min(placements, key=lambda entry: entry[:2])[2]

    def _pick(self, number: int, size: int, costs: Costs) -> Pick:
        return min(self._good(self._tables[number][size]), key=costs.of)

    def _offers(self, costs: Costs, window: Window) -> list[Offer]:
        """Return for each node the numbers of workers that it can take, with the costs."""
        by_kind = {}
        for table in self._kinds:
            best = [min(self._good(table[size]), key=costs.of) for size in self._sizes(table, window)]
            best.sort(key=lambda pick: members(pick.mask))
            by_kind[id(table)] = [(pick.mask.bit_count() // self._step, costs.of(pick)) for pick in best]
        return [by_kind[id(table)] for table in self._tables]

    def _leaves(self, offers: Sequence[Offer]) -> list[list[Offer]]:
        pairs = zip(self._nodes, offers, strict=True)
        return [[offer for _, offer in group] for _, group in groupby(pairs, key=lambda pair: pair[0].leaf)]

    def _leaf_cost(self, costs: Costs) -> int:
        return costs.of_leaf if len({node.leaf for node in self._nodes}) > 1 else 0

    def _costs(self, sums: tuple[Sum, ...]) -> Costs:
        return Costs(sums, self._all_picks(), min(len(self._nodes), self._total))

    def _all_picks(self) -> list[Pick]:
        return [pick for table in self._kinds for table_picks in table.values() for pick in table_picks]
