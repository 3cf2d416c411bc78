"""The GPU sets that a node can give to a job, and their costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import combinations

from provision.topology.cards import members
from provision.topology.score import SetScores

_MAX_PARTITIONED = 8
"""With more free GPUs than this, the rest is scored by group sizes instead of by all partitions."""


class Sum(IntEnum):
    """Criteria that are sums over the nodes of a job; less is better."""

    NODES = 0
    LEAVES = 1
    PIX_NICS = 2
    """GPUs with a card of their own at PIX, negated."""
    NEAR_NICS = 3
    """GPUs with a card of their own at PIX or PXB, negated."""
    NUMA = 4
    LOST = 5
    """Value of the node to further jobs of the same size, before minus after."""
    NUMA_LEFT = 6
    """NUMA nodes of the best remaining sets, after minus before."""
    BROKEN = 7
    """Nodes that were completely free."""
    FREE = 8
    """Free GPUs of the nodes before the job; the tightest fit is best."""
    WEIGHTS = 9
    """Sum of the link weights of all pairs, negated."""


@dataclass(frozen=True)
class FreeNode:
    """A node and its GPUs that a job may use."""

    name: str
    scores: SetScores
    free: int
    """Mask of the free GPUs."""
    leaf: str = ""
    barred: frozenset[int] = frozenset()
    """Sets to exclude, to find the next best placement."""


@dataclass(frozen=True)
class Pick:
    """A set of GPUs of a node that a job may use."""

    mask: int
    rate: int
    """The bandwidth of a job that uses this set."""
    sums: tuple[int, ...]
    """Values indexed by `Sum`."""


Rate = Callable[[SetScores, int], int]
OwnNics = Callable[[SetScores, int], tuple[int, int]]


def sets(node: FreeNode, size: int, rate: Rate, own_nics: OwnNics) -> Iterator[Pick]:
    """Yield the sets of `size` free GPUs of the node in the order of their GPUs; of equal sets only the first.

    Args:
        node: the node.
        size: number of GPUs.
        rate: bandwidth of a job that uses a set.
        own_nics: number of GPUs of a set that can have a card of their own, at PIX and at PIX or PXB.
    """
    scores, free = node.scores, node.free
    many = free.bit_count() > _MAX_PARTITIONED
    before = _worth(scores, free, size, many=many)
    whole = int(free.bit_count() == scores.count)
    known_values = set()
    for bits in combinations([1 << row for row in members(free)], size):
        mask = sum(bits)
        if mask in node.barred:
            continue
        after = _worth(scores, free ^ mask, size, many=many)
        pix, near = own_nics(scores, mask)
        lost, numa_left = before[0] - after[0], after[1] - before[1]
        numa, pairs = scores.numa_nodes(mask), scores.weights(mask)
        sums = (1, 0, -pix, -near, numa, lost, numa_left, whole, free.bit_count(), -pairs)
        worth = (rate(scores, mask), sums)
        if worth not in known_values:
            known_values.add(worth)
            yield Pick(mask, *worth)


def _worth(scores: SetScores, free: int, size: int, *, many: bool) -> tuple[int, int]:
    return (scores.largest(free), 0) if many else scores.left(free, size)


class Costs:
    """Encodes several sums as one integer that can be added, the most important in the highest digits.

    Args:
        order: the sums to encode, the most important first.
        picks: all sets whose costs may be added.
        nodes: the maximum number of added costs.
    """

    def __init__(self, order: Sequence[Sum], picks: Iterable[Pick], nodes: int) -> None:
        most = [0] * len(Sum)
        for pick in picks:
            most = [max(highest, abs(value)) for highest, value in zip(most, pick.sums, strict=True)]
        most[Sum.LEAVES] = 1
        self._factors: dict[Sum, int] = {}
        factor = 1
        for which in reversed(order):
            self._factors[which] = factor
            factor *= 2 * nodes * most[which] + 1

    def of(self, pick: Pick) -> int:
        """Return the cost of a set."""
        return sum(pick.sums[which] * factor for which, factor in self._factors.items())

    def limit(self, cost: int, last: Sum) -> int:
        """Return the upper limit of a full cost that equals `cost` down to the sum `last`."""
        factor = self._factors[last]
        return cost * factor + factor // 2

    @property
    def of_leaf(self) -> int:
        """Return the cost of using one more leaf switch."""
        return self._factors.get(Sum.LEAVES, 0)

    def count(self, wanted: Sum, cost: int) -> int:
        """Return the value of a sum in a total cost, for a sum that is never negative; 0 if it is not encoded."""
        for which, factor in reversed(self._factors.items()):
            count = (cost + factor // 2) // factor
            if which is wanted:
                return count
            cost -= count * factor
        return 0
