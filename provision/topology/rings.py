"""The number of rings that fit on direct NVLinks, and the best order of GPUs along one ring."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations, permutations, product

_MAX_GPUS = 8
"""Machines with direct NVLinks have at most eight GPUs; longer rings are not searched."""
_MAX_STEPS = 1 << 14
"""Limit of search steps, as in NCCL; existing machines, with or without failed lanes, need a tenth of it."""

Matrix = tuple[tuple[int, ...], ...]
Arc = tuple[int, int]


@cache
def ring_count(lanes: Matrix) -> int:
    """Return how many directed rings through all GPUs fit on the lanes at once; a lane carries one ring per direction.

    Args:
        lanes: square and symmetric matrix of the lanes between at least two GPUs. More than eight GPUs
            have no ring: machines of that size have switches.
    """
    size = len(lanes)
    if size == 2:  # noqa: PLR2004 - the lanes themselves are the ring
        return lanes[0][1]
    return 0 if size > _MAX_GPUS else _Packing(lanes).best()


class _Packing:
    """Searches all sets of rings in a fixed order for the largest one."""

    def __init__(self, lanes: Matrix) -> None:
        self._left = [list(row) for row in lanes]
        self._rings = _rings(lanes)
        self._most = _smallest_cut(lanes) if self._rings else 0
        self._seen: dict[tuple[int, ...], int] = {}
        self._best = 0
        self._steps = 0

    def best(self) -> int:
        """Return the number of rings; stop at the smallest cut or after the step limit."""
        self._search(0, 0)
        return self._best

    def _search(self, first: int, count: int) -> None:
        """Add rings from number `first` on to the `count` rings already placed."""
        self._best = max(self._best, count)
        self._steps += 1
        if count + min(map(sum, self._left)) <= self._best:
            return
        state = (first, *(lanes for row in self._left for lanes in row))
        if self._seen.get(state, -1) >= count:
            return
        self._seen[state] = count
        for number in range(first, len(self._rings)):
            ring = self._rings[number]
            if all(self._left[a][b] for a, b in ring):
                self._lay(ring, -1)
                self._search(number, count + 1)
                self._lay(ring, 1)
            if self._best >= self._most or self._steps > _MAX_STEPS:
                return

    def _lay(self, ring: Sequence[Arc], lanes: int) -> None:
        for a, b in ring:
            self._left[a][b] += lanes


def _smallest_cut(lanes: Matrix) -> int:
    """Return the fewest lanes between a part and the rest; every ring leaves every part at least once."""
    everyone = range(len(lanes))
    parts = (part for size in range(1, len(lanes) // 2 + 1) for part in combinations(everyone, size))
    return min(sum(lanes[a][b] for a, b in product(part, everyone) if b not in part) for part in parts)


def _rings(lanes: Matrix) -> list[tuple[Arc, ...]]:
    """Return all directed rings through all GPUs that have a lane at every step."""
    rings: list[tuple[Arc, ...]] = []

    def extend(path: tuple[int, ...]) -> None:
        if len(path) == len(lanes):
            if lanes[path[-1]][0]:
                rings.append(tuple(zip(path, (*path[1:], 0), strict=True)))
            return
        for other in range(1, len(lanes)):
            if lanes[path[-1]][other] and other not in path:
                extend((*path, other))

    extend((0,))
    return rings


def best_ring(members: Sequence[int], weights: Matrix) -> tuple[int, ...]:
    """Return `members` in the order of their best ring: by the smallest weight of a step, then by the sum of weights.

    Of equal rings, the first in the order of the members is used; more than eight members keep their order.
    """
    if len({weights[a][b] for a, b in combinations(members, 2)}) <= 1 or len(members) > _MAX_GPUS:
        return tuple(members)

    def worth(order: tuple[int, ...]) -> tuple[int, int]:
        steps = [weights[a][b] for a, b in zip(order, (*order[1:], order[0]), strict=True)]
        return min(steps), sum(steps)

    first, *others = members
    return max(((first, *rest) for rest in permutations(others)), key=worth)
