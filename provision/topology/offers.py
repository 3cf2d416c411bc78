"""What a node can give to a job, and what each way of giving it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import combinations

from provision.topology.cards import members
from provision.topology.score import SetScores

__all__ = ["Costs", "FreeNode", "Pick", "Sum", "sets"]

_MANY = 8
"""Of more free GPUs what stays free is not looked at partition by partition."""


class Sum(IntEnum):
    """The criteria that are sums over the nodes of a job; less is better in each."""

    NODES = 0
    LEAVES = 1
    PIX_NICS = 2
    """GPUs with a card of their own below the same PCIe switch, below zero."""
    NEAR_NICS = 3
    """GPUs with a card of their own that is PIX or PXB, below zero."""
    NUMA = 4
    LOST = 5
    """What a node was worth to jobs of the same size on it, less what it is worth after."""
    NUMA_LEFT = 6
    """NUMA nodes of the best sets that stay free, after less before."""
    BROKEN = 7
    """Nodes that were wholly free."""
    FREE = 8
    """Free GPUs of the nodes before the job: fewest fits best."""
    WEIGHTS = 9
    """How well all pairs are joined, below zero."""


@dataclass(frozen=True)
class FreeNode:
    """A node and the GPUs that a job may get there."""

    name: str
    scores: SetScores
    free: int
    """The set of GPUs that are free."""
    leaf: str = ""
    barred: frozenset[int] = frozenset()
    """Sets that are not to be used, where the question is what the next best is."""


@dataclass(frozen=True)
class Pick:
    """A set of GPUs of a node that a job may get."""

    mask: int
    rate: int
    """The bandwidth of a job that has this set among its own."""
    sums: tuple[int, ...]
    """By `Sum`."""


Rate = Callable[[SetScores, int], int]
OwnNics = Callable[[SetScores, int], tuple[int, int]]


def sets(node: FreeNode, size: int, rate: Rate, own_nics: OwnNics) -> Iterator[Pick]:
    """Yield the sets of `size` free GPUs of the node, in the order of their GPUs; of equally good ones the first.

    Args:
        node: the node.
        size: how many GPUs it gives.
        rate: the bandwidth of a job that has these GPUs among its own.
        own_nics: how many GPUs of a set can have a card of their own: one that is PIX, one that is near.
    """
    scores, free = node.scores, node.free
    many = free.bit_count() > _MANY
    before = _worth(scores, free, size, many=many)
    whole = int(free.bit_count() == scores.count)
    seen = set()
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
        if worth not in seen:
            seen.add(worth)
            yield Pick(mask, *worth)


def _worth(scores: SetScores, free: int, size: int, *, many: bool) -> tuple[int, int]:
    return (scores.largest(free), 0) if many else scores.left(free, size)


class Costs:
    """How several sums become one number, the weightiest on top, that can be added up.

    Args:
        order: the sums that count, the weightiest first.
        picks: all that is added up.
        nodes: how many of them at most.
    """

    def __init__(self, order: Sequence[Sum], picks: Iterable[Pick], nodes: int) -> None:
        most = [0] * len(Sum)
        for pick in picks:
            most = [max(known, abs(value)) for known, value in zip(most, pick.sums, strict=True)]
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
        """Return the most that is told of a sum of costs by `cost`, the same down to the sum `last` and no further."""
        factor = self._factors[last]
        return cost * factor + factor // 2

    @property
    def of_leaf(self) -> int:
        """The cost of using one more leaf switch."""
        return self._factors.get(Sum.LEAVES, 0)

    def nodes(self, cost: int) -> int:
        """Return how many nodes a sum of costs is for; they have to be among the sums."""
        for which, factor in reversed(self._factors.items()):
            count = (cost + factor // 2) // factor
            if which is Sum.NODES:
                return count
            cost -= count * factor
        return 0
