"""The best-effort policy of NVIDIA's go-gpuallocator, as its documentation defines it, on described machines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations

from provision.topology.placement import Request
from provision.topology.select import place
from tests.unit.topology.boxes import Box
from tests.unit.topology.oracle import bits, inside

PCIE_SCORES = {"PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}
LANE_SCORE = 100


@cache
def pair_score(box: Box, a: int, b: int) -> int:
    """Return the score of two GPUs: their PCIe class, and 100 for each NVLink."""
    return PCIE_SCORES[box.pcie[a][b] or "SYS"] + LANE_SCORE * box.lanes[a][b]


@cache
def points(box: Box, gpus: tuple[int, ...]) -> int:
    """Return the score of a set of GPUs."""
    return sum(pair_score(box, a, b) for a, b in combinations(gpus, 2))


def partitions(gpus: tuple[int, ...], size: int, padding: int) -> Iterator[list[tuple[int, ...]]]:
    """Return all partitions of the GPUs into sets, one of which has all padding; the first GPU's set comes first."""
    if not gpus:
        yield []
        return
    for pad in (0, padding) if padding else (0,):
        for others in combinations(gpus[1:], size - 1 - pad):
            rest = tuple(gpu for gpu in gpus[1:] if gpu not in others)
            yield from ([(gpus[0], *others), *more] for more in partitions(rest, size, padding - pad))


def theirs(box: Box, available: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The set that the allocator picks: the best of the best partition, each the first of its equals."""
    if size == 1:
        return available[:1]
    cut = partitions(available, size, -len(available) % size)
    best = max(cut, key=lambda sets: sum(points(box, gpus) for gpus in sets))
    return max((gpus for gpus in best if len(gpus) == size), key=lambda gpus: points(box, gpus))


def ours(box: Box, available: tuple[int, ...], size: int) -> tuple[int, ...]:
    node = box.candidate("n", sum(1 << gpu for gpu in available))
    return tuple(sorted(gpu for worker in place([node], Request(1, size)).workers for gpu in worker.gpus))


def compare(box: Box, masks: range) -> tuple[int, int]:
    """Return for how many picks ours is faster, and for how many the set is another of equal speed."""
    faster, other = 0, 0
    for available in map(bits, masks):
        for size in range(1, len(available) + 1):
            mine, upstream = ours(box, available, size), theirs(box, available, size)

            assert inside(box, mine) >= inside(box, upstream), (available, size)
            faster += inside(box, mine) > inside(box, upstream)
            other += mine != upstream
    return faster, other
