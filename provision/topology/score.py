"""What every set of a machine's GPUs is worth to a job.

Figures are tenths of GB/s one way, as integers, so that comparisons are exact. A set of GPUs is a bit mask over the
rows of the machine's matrix. In which order the factors below put links is certain; the factors themselves are coarse,
and a measured matrix replaces them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations

from provision.model import Topology
from provision.topology.links import NEAR, PCIE_CLASSES, lanes
from provision.topology.candidates import Machine
from provision.topology.products import DEFAULT_NIC
from provision.topology.rings import best_ring, ring_count

__all__ = ["UNLIMITED", "Network", "SetScores", "members"]

UNLIMITED = 1 << 24
"""The bandwidth inside a set of one GPU: it needs no ring."""
_MOST_LANES = 18
"""No GPU has more NVLink lanes: a row that seems to counts those to the NVLink switches once for each peer."""
_PERCENT: Mapping[str, int] = {"PIX": 100, "PXB": 95, "PHB": 75, "NODE": 65, "SYS": 50}
"""Class -> what a ring through it gets of a PCIe slot."""
_STAGED_PERCENT = 55
"""What is left of a way to the network that leads through the host's memory."""
_FEW = 8
"""Of so many GPUs all partitions are looked at."""
_LEVELS, _LEVEL = 6, 1 << 16
_SYS, _NODE = PCIE_CLASSES.index("SYS"), PCIE_CLASSES.index("NODE")
_PIX, _ONE_SOCKET = frozenset({"PIX"}), frozenset(PCIE_CLASSES) - {"SYS"}


def members(mask: int) -> tuple[int, ...]:
    """Return the rows that a mask stands for, ascending."""
    return tuple(row for row in range(mask.bit_length()) if mask >> row & 1)


class Network:
    """Which network cards a job uses.

    Args:
        layer: the link layer of its ports; empty where nobody knows any.
        rails: the rails that every node of the job reaches; None where cards of all rails meet. With no rail at all,
            traffic changes rails in the hosts.
    """

    def __init__(self, layer: str = "", rails: frozenset[str] | None = None) -> None:
        self.layer = layer
        self.rails = rails


class SetScores:
    """The scores of the sets of one machine; each is worked out once."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.count = len(machine.topology.gpus)
        self._lanes = _nvlinks(machine.topology)
        self._classes = _pcie_classes(machine.topology, self._lanes)
        self._inside: dict[int, int] = {}
        self._weights: dict[int, int] = {}
        self._rings: dict[int, tuple[int, ...]] = {}
        self._left: dict[tuple[int, int], tuple[int, int]] = {}
        self._largest: dict[tuple[int, int], int] = {}

    def mask(self, indices: Sequence[int] | frozenset[int]) -> int:
        """Return the set of the GPUs that nvidia-smi gives these indices."""
        return sum(1 << row for row, gpu in enumerate(self.machine.topology.gpus) if gpu.index in indices)

    def indices(self, rows: Sequence[int]) -> tuple[int, ...]:
        """Return nvidia-smi's indices of rows, in the rows' order."""
        return tuple(self.machine.topology.gpus[row].index for row in rows)

    # Inside the node

    def inside(self, mask: int) -> int:
        """Return what a ring through the set gets: the best of switched NVLink, direct NVLink and PCIe."""
        if mask not in self._inside:
            rows = members(mask)
            alone = len(rows) < 2  # noqa: PLR2004
            self._inside[mask] = UNLIMITED if alone else max(self._over_nvlink(rows), self._over_pcie(rows))
        return self._inside[mask]

    def _over_nvlink(self, rows: tuple[int, ...]) -> int:
        pairs = [(a, b) for a, b in combinations(rows, 2) if self._lanes[a][b]]
        if self.switched:
            whole = len(pairs) == len(rows) * (len(rows) - 1) // 2
            return min(self._nvlink_rate(a, b) for a, b in pairs) if whole else 0
        rings = ring_count(tuple(tuple(self._lanes[a][b] for b in rows) for a in rows))
        return min((rings * self._nvlink_rate(a, b) // self._lanes[a][b] for a, b in pairs), default=0)

    def _nvlink_rate(self, a: int, b: int) -> int:
        measured = self.machine.p2p
        return measured[a][b] if measured else self._lanes[a][b] * self.machine.lane

    def _over_pcie(self, rows: tuple[int, ...]) -> int:
        """Classes are those of a tree, so the worst one inside a set is what every ring through it crosses."""
        rates = (self._pcie_rate(a, b) for a, b in combinations(rows, 2))
        return min((rate for rate in rates if rate is not None), default=0)

    def _pcie_rate(self, a: int, b: int) -> int | None:
        """None for two GPUs that NVLink joins, where nothing tells of their way over PCIe."""
        if self.machine.p2p is not None:
            return None if self._lanes[a][b] else self.machine.p2p[a][b]
        rank = self._classes[a][b]
        if rank is None:
            return None
        rate = self.machine.pcie * _PERCENT[PCIE_CLASSES[rank]] // 100
        return self._crossing(rate) if rank == _SYS else rate

    def _crossing(self, rate: int) -> int:
        return rate if self.machine.inter_cpu is None else min(rate, self.machine.inter_cpu)

    @cached_property
    def switched(self) -> bool:
        """Whether the GPUs' NVLinks lead to switches: then a row shows more lanes than a GPU has."""
        return any(sum(row) > (self.machine.lanes or _MOST_LANES) for row in self._lanes)

    def weights(self, mask: int) -> int:
        """Return how well all pairs of a set are joined, summed; NVLink and PCIe both count."""
        if mask not in self._weights:
            self._weights[mask] = sum(self._weight[a][b] for a, b in combinations(members(mask), 2))
        return self._weights[mask]

    @cached_property
    def _weight(self) -> tuple[tuple[int, ...], ...]:
        def weight(a: int, b: int) -> int:
            return (self._nvlink_rate(a, b) if self._lanes[a][b] else 0) + (self._pcie_rate(a, b) or 0)

        return tuple(tuple(weight(a, b) if a != b else 0 for b in range(self.count)) for a in range(self.count))

    def ring(self, mask: int) -> tuple[int, ...]:
        """Return the rows of a set in the order of its best ring."""
        if mask not in self._rings:
            self._rings[mask] = best_ring(members(mask), self._weight)
        return self._rings[mask]

    def numa_nodes(self, mask: int) -> int:
        """Return over how many NUMA nodes the set spreads."""
        return len({self._numa[row] for row in members(mask)})

    @cached_property
    def _numa(self) -> tuple[int | None, ...]:
        """Return each GPU's NUMA node; where they are not told, GPUs that are SYS to each other lie on two."""
        told = tuple(gpu.numa for gpu in self.machine.topology.gpus)
        if None not in told:
            return told
        found: list[int | None] = []
        for row in range(self.count):
            near = (other for other in range(row) if self._classes[row][other] != _SYS)
            first = next(near, None)
            found.append(row if first is None else found[first])
        return tuple(found)

    # What stays free

    def left(self, free: int, size: int) -> tuple[int, int]:
        """Return what these GPUs are worth to jobs of `size` each: rates and NUMA nodes of their best sets, summed."""
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
            taken = low | sum(1 << row for row in others)
            rate, nodes = self.left(free ^ taken, size)
            found = (rate + self.inside(taken), nodes + self.numa_nodes(taken))
            if (found[0], -found[1]) > (best[0], -best[1]):
                best = found
        return best

    def partition(self, mask: int, size: int) -> tuple[int, ...]:
        """Return the set cut into sets of `size` GPUs that together are worth most, by their first GPUs."""
        if size == 1 or mask.bit_count() > _FEW:
            ring = self.ring(mask)
            return tuple(sum(1 << row for row in ring[at : at + size]) for at in range(0, len(ring), size))
        parts: list[int] = []
        while mask:
            low = mask & -mask
            for others in combinations(members(mask ^ low), size - 1):
                taken = low | sum(1 << row for row in others)
                rate, nodes = self.left(mask ^ taken, size)
                if (rate + self.inside(taken), nodes + self.numa_nodes(taken)) == self.left(mask, size):
                    parts.append(taken)
                    mask ^= taken
                    break
        return tuple(parts)

    def largest(self, free: int) -> int:
        """Return how many of the free GPUs can work together at the best bandwidth, the next and so on, as one number.

        It stands in for `left` where there are too many partitions.
        """
        value = 0
        for level in self._levels:
            value = value * _LEVEL + self._largest_at(free, level)
        return value

    @cached_property
    def _levels(self) -> tuple[int, ...]:
        """Return the bandwidths of pairs, the best first; on machines of that size larger sets have no others."""
        rates = {self.inside(1 << a | 1 << b) for a, b in combinations(range(self.count), 2)}
        return tuple(sorted(rates, reverse=True)[:_LEVELS])

    def _largest_at(self, free: int, level: int) -> int:
        """Return how many of the free GPUs can work together at `level` or better."""
        if (free, level) not in self._largest:
            rows = members(free)
            apart = next(((a, b) for a, b in combinations(rows, 2) if self.inside(1 << a | 1 << b) < level), None)
            self._largest[free, level] = (
                len(rows)
                if apart is None
                else max(self._largest_at(free ^ 1 << apart[0], level), self._largest_at(free ^ 1 << apart[1], level))
            )
        return self._largest[free, level]

    # Between nodes

    def in_domain(self, mask: int) -> int:
        """Return what a ring gets that leads on over NVLink to other nodes of the same NVLink domain."""
        own = [max(self._lanes[row], default=0) or self.machine.lanes or 0 for row in members(mask)]
        return min(self.inside(mask), min(own) * self.machine.lane)

    def outside(self, mask: int, network: Network) -> int:
        """Return what the set gets to other nodes: the cards that share a PCIe switch with one of its GPUs, summed.

        Without such a card data is staged in the host's memory, by the best card that there is. 0: the set reaches not
        all rails of the network.
        """
        near = self.near_nics(mask, network)
        if network.rails and not network.rails <= {self.machine.ports[nic].rail for nic in near}:
            return 0
        if near and network.rails != frozenset():
            return sum(self._nic_rate(nic) for nic in near)
        return self._staged(mask, network)

    def near_nics(self, mask: int, network: Network) -> tuple[int, ...]:
        """Return the usable cards of the network that are PIX or PXB to a GPU of the set."""
        rails = network.rails
        return tuple(
            nic
            for nic in self._usable(network)
            if self._near[nic] & mask and (not rails or self.machine.ports[nic].rail in rails)
        )

    def _usable(self, network: Network) -> list[int]:
        ports = enumerate(self.machine.ports)
        return [nic for nic, port in ports if port.rate and (not network.layer or port.layer in {"", network.layer})]

    @cached_property
    def _near(self) -> tuple[int, ...]:
        return tuple(self._at(nic, NEAR) for nic in range(len(self.machine.ports)))

    def _at(self, nic: int, classes: frozenset[str]) -> int:
        """Return the GPUs that are so near to a card."""
        links = self.machine.topology.links
        return sum(1 << row for row in range(self.count) if links[row][self.count + nic] in classes)

    def _nic_rate(self, nic: int) -> int:
        return min(self.machine.ports[nic].rate, self.machine.pcie)

    def _staged(self, mask: int, network: Network) -> int:
        rates = [
            self._nic_rate(nic) if self._at(nic, _ONE_SOCKET) & mask else self._crossing(self._nic_rate(nic))
            for nic in self._usable(network)
        ]
        if not self.machine.ports:  # the matrix names none, and a node without a network is in no cluster
            rates = [min(DEFAULT_NIC, self.machine.pcie)]
        return max(rates, default=0) * _STAGED_PERCENT // 100

    def own_nics(self, mask: int, network: Network) -> tuple[int, int]:
        """Return how many GPUs of the set can have a card of their own: one that is PIX to them, one that is near."""
        usable = self._usable(network)
        pix = [self._at(nic, _PIX) & mask for nic in usable]
        return _matched(pix), _matched([self._near[nic] & mask for nic in usable])


def _matched(reach: Sequence[int]) -> int:
    """Return how many of these cards can serve a GPU of their own; `reach` are the GPUs that each could serve."""
    served: dict[int, int] = {}

    def serve(card: int, tried: set[int]) -> bool:
        for row in members(reach[card]):
            if row not in tried:
                tried.add(row)
                if row not in served or serve(served[row], tried):
                    served[row] = card
                    return True
        return False

    return sum(serve(card, set()) for card in range(len(reach)))


def _nvlinks(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Return the NVLink lanes between each two GPUs; the fewer where the two ways are told differently."""
    count, links = len(topology.gpus), topology.links
    return tuple(tuple(min(lanes(links[a][b]), lanes(links[b][a])) for b in range(count)) for a in range(count))


def _pcie_classes(topology: Topology, wired: Sequence[Sequence[int]]) -> list[list[int | None]]:
    """Return the rank of the PCIe class between each two GPUs; None where NVLink hides it and nothing tells.

    Classes are those of a tree: what NVLink hides shows in how far the two are from a third, GPU or card.
    """
    links = topology.links
    shown = [[PCIE_CLASSES.index(cell) if cell in PCIE_CLASSES else None for cell in row] for row in links]
    count = len(topology.gpus)
    ranks: list[list[int | None]] = [[None] * count for _ in range(count)]
    for a, b in combinations(range(count), 2):
        known = [rank for rank in (shown[a][b], shown[b][a]) if rank is not None]
        ranks[a][b] = ranks[b][a] = max(known) if known and not wired[a][b] else _hidden(topology, shown, a, b)
    return ranks


def _hidden(topology: Topology, shown: Sequence[Sequence[int | None]], a: int, b: int) -> int | None:
    """Return the rank of a class that NVLink hides."""
    both = [(x, y) for x, y in zip(shown[a], shown[b], strict=True) if x is not None and y is not None]
    certain = next((max(x, y) for x, y in both if x != y), None)
    if certain is not None:
        return certain
    most = min((x for x, _ in both), default=_SYS)
    if most < _SYS:
        return most
    numa = topology.gpus[a].numa, topology.gpus[b].numa
    if None in numa:
        return None
    return _NODE if numa[0] == numa[1] else _SYS
