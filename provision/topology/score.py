"""Scores of GPU sets of a machine.

Rates are tenths of GB/s in one direction, as integers, so that comparisons are exact. A GPU set is a bit mask over the
rows of the machine's matrix.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import combinations

from provision.topology.candidates import Machine
from provision.topology.cards import Cards, members
from provision.topology.pairs import Pairs
from provision.topology.rings import best_ring, ring_count

UNLIMITED = 1 << 24
"""The bandwidth of a set of one GPU, which needs no ring."""
_MAX_PARTITIONED = 8
"""Up to this number of GPUs, all partitions are compared."""
_LEVELS, _LEVEL = 6, 1 << 16


class SetScores:
    """The cached scores of the GPU sets of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.count = len(machine.topology.gpus)
        self.cards = Cards(machine)
        self._pairs = Pairs(machine)
        self._inside: dict[int, int] = {}
        self._nvlink: dict[int, int] = {}
        self._pcie: dict[int, int] = {}
        self._weights: dict[int, int] = {0: 0}
        self._rings: dict[int, tuple[int, ...]] = {}
        self._left: dict[tuple[int, int], tuple[int, int]] = {}

    def mask(self, indices: Collection[int]) -> int:
        """Return the set of the GPUs with these nvidia-smi indices."""
        return sum(1 << row for row, gpu in enumerate(self.machine.topology.gpus) if gpu.index in indices)

    def indices(self, rows: Sequence[int]) -> tuple[int, ...]:
        """Return the nvidia-smi indices of rows, in the order of the rows."""
        return tuple(self.machine.topology.gpus[row].index for row in rows)

    def inside(self, mask: int) -> int:
        """Return the bandwidth of a ring through the set: the best of switched NVLink, direct NVLink and PCIe."""
        if mask not in self._inside:
            is_single = mask.bit_count() < 2  # noqa: PLR2004
            self._inside[mask] = UNLIMITED if is_single else max(self._over_nvlink(mask), self._over_pcie(mask))
        return self._inside[mask]

    def _over_nvlink(self, mask: int) -> int:
        pairs = self._pairs
        if pairs.switched:
            return _weakest(mask, pairs.nvlink, self._nvlink)
        rows = members(mask)
        rings = ring_count(tuple(tuple(pairs.lanes[a][b] for b in rows) for a in rows))
        wired = ((a, b) for a, b in combinations(rows, 2) if pairs.lanes[a][b])
        return min((rings * pairs.nvlink[a][b] // pairs.lanes[a][b] for a, b in wired), default=0)

    def _over_pcie(self, mask: int) -> int:
        """Return the rate of the farthest class in the set; in a tree, every ring crosses it."""
        rate = _weakest(mask, self._pairs.pcie, self._pcie)
        return 0 if rate == UNLIMITED else rate

    def in_domain(self, mask: int) -> int:
        """Return the bandwidth of a ring that continues over NVLink to other nodes of the same NVLink domain."""
        own = [max(self._pairs.lanes[row], default=0) or self.machine.lanes or 0 for row in members(mask)]
        return min(self.inside(mask), min(own) * self.machine.lane)

    def weights(self, mask: int) -> int:
        """Return the sum of the link weights of all pairs of a set, NVLink and PCIe."""
        if mask not in self._weights:
            rest = mask & (mask - 1)
            row = self._pairs.weight[(mask ^ rest).bit_length() - 1]
            self._weights[mask] = self.weights(rest) + sum(row[other] for other in members(rest))
        return self._weights[mask]

    def ring(self, mask: int) -> tuple[int, ...]:
        """Return the rows of a set in the order of its best ring."""
        if mask not in self._rings:
            self._rings[mask] = best_ring(members(mask), self._pairs.weight)
        return self._rings[mask]

    def numa_nodes(self, mask: int) -> int:
        """Return the number of NUMA nodes of the set."""
        return sum(bool(node & mask) for node in self._numa)

    @cached_property
    def _numa(self) -> tuple[int, ...]:
        """Return the GPUs of each NUMA node."""
        numa = self._pairs.numa
        return tuple(sum(1 << row for row, other in enumerate(numa) if other == node) for node in dict.fromkeys(numa))

    # Remaining free GPUs

    def left(self, free: int, size: int) -> tuple[int, int]:
        """Return the value of free GPUs to jobs of `size` each: rates and NUMA nodes of their best sets, summed."""
        if free.bit_count() < size:
            return 0, 0
        if size == 1:
            return free.bit_count() * UNLIMITED, free.bit_count()
        if (free, size) not in self._left:
            self._left[free, size] = self._best_partition(free, size)
        return self._left[free, size]

    def _best_partition(self, free: int, size: int) -> tuple[int, int]:
        low = free & -free
        best = self.left(free ^ low, size)
        for others in combinations(members(free ^ low), size - 1):
            value = self._with(low | sum(1 << row for row in others), free, size)
            if (value[0], -value[1]) > (best[0], -best[1]):
                best = value
        return best

    def _with(self, used: int, free: int, size: int) -> tuple[int, int]:
        rate, nodes = self.left(free ^ used, size)
        return rate + self.inside(used), nodes + self.numa_nodes(used)

    def partition(self, mask: int, size: int) -> tuple[int, ...]:
        """Return the partition of the set into sets of `size` GPUs with the highest value, by their first GPUs."""
        if size == 1 or mask.bit_count() > _MAX_PARTITIONED:
            ring = self.ring(mask)
            return tuple(sum(1 << row for row in ring[at : at + size]) for at in range(0, len(ring), size))
        parts: list[int] = []
        while mask:
            low = mask & -mask
            sets = (low | sum(1 << row for row in some) for some in combinations(members(mask ^ low), size - 1))
            parts.append(next(used for used in sets if self._with(used, mask, size) == self.left(mask, size)))
            mask ^= parts[-1]
        return tuple(parts)

    def largest(self, free: int) -> int:
        """Return how many free GPUs work together at the best bandwidth, the next best and so on, as one integer.

        It replaces `left` if there are too many partitions.
        """
        value = 0
        for groups in self._groups:
            value = value * _LEVEL + max((free & group).bit_count() for group in groups)
        return value

    @cached_property
    def _groups(self) -> tuple[tuple[int, ...], ...]:
        """Return for each bandwidth between two GPUs, best first, the groups of GPUs that have it to each other."""
        pairs = {1 << a | 1 << b: self.inside(1 << a | 1 << b) for a, b in combinations(range(self.count), 2)}
        levels = sorted(set(pairs.values()), reverse=True)[:_LEVELS]
        return tuple(self._joined([pair for pair, rate in pairs.items() if rate >= level]) for level in levels)

    def _joined(self, pairs: Sequence[int]) -> tuple[int, ...]:
        groups = [1 << row for row in range(self.count)]
        for pair in pairs:
            touched = [group for group in groups if group & pair]
            groups = [group for group in groups if not group & pair] + [sum(touched)]
        return tuple(groups)


def _weakest(mask: int, rates: Sequence[Sequence[int | None]], known: dict[int, int]) -> int:
    """Return the lowest rate between two GPUs of a set; UNLIMITED if none is known."""
    rest = mask & (mask - 1)
    if not rest:
        return UNLIMITED
    if mask not in known:
        row = rates[(mask ^ rest).bit_length() - 1]
        row_rates = [rate for other in members(rest) if (rate := row[other]) is not None]
        known[mask] = min(_weakest(rest, rates, known), *row_rates, UNLIMITED)
    return known[mask]
