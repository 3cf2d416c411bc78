"""Bandwidth between each two GPUs of a machine, in tenths of GB/s in one direction.

The factors below rank links reliably, but their values are approximate; a measured matrix replaces them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from provision.model import Topology
from provision.topology.candidates import Machine
from provision.topology.links import PCIE_CLASSES, lanes

_MAX_LANES = 18
"""The most NVLink lanes of any GPU. If a row has more, the lanes lead to switches and are counted once per peer."""
_PERCENT: Mapping[str, int] = {"PIX": 100, "PXB": 95, "PHB": 75, "NODE": 65, "SYS": 50}
"""Class -> percentage of a PCIe slot's rate that a ring through it gets."""
_SYS, _NODE = PCIE_CLASSES.index("SYS"), PCIE_CLASSES.index("NODE")


class Pairs:
    """The links of one machine; every matrix is square over its GPUs and symmetric."""

    def __init__(self, machine: Machine) -> None:
        topology = machine.topology
        self.count = len(topology.gpus)
        self.lanes = _nvlinks(topology)
        self.switched = any(sum(row) > (machine.lanes or _MAX_LANES) for row in self.lanes)
        """Whether NVLinks lead to switches: then a row shows more lanes than a GPU has."""
        self._machine = machine
        self._classes = _pcie_classes(topology, self.lanes)
        every = range(self.count)
        self.nvlink = tuple(tuple(self._nvlink_rate(a, b) for b in every) for a in every)
        """0 without NVLink."""
        self.pcie = tuple(tuple(self._pcie_rate(a, b) for b in every) for a in every)
        """None for two GPUs that are connected by NVLink if their PCIe path is unknown."""
        self.weight = tuple(tuple(self.nvlink[a][b] + (self.pcie[a][b] or 0) for b in every) for a in every)
        """The sum of the NVLink and PCIe rates of two GPUs."""
        self.numa = self._numa_nodes()
        """The NUMA node of each GPU; if unknown, GPUs that are SYS to each other count as different nodes."""

    def _nvlink_rate(self, a: int, b: int) -> int:
        if not self.lanes[a][b]:
            return 0
        measured = self._machine.p2p
        return measured[a][b] if measured else self.lanes[a][b] * self._machine.lane

    def _pcie_rate(self, a: int, b: int) -> int | None:
        if self._machine.p2p is not None:
            return None if self.lanes[a][b] or a == b else self._machine.p2p[a][b]
        rank = self._classes[a][b]
        if rank is None:
            return None
        rate = self._machine.pcie * _PERCENT[PCIE_CLASSES[rank]] // 100
        return min(rate, self._machine.inter_cpu or rate) if rank == _SYS else rate

    def _numa_nodes(self) -> tuple[int | None, ...]:
        reported = tuple(gpu.numa for gpu in self._machine.topology.gpus)
        if None not in reported:
            return reported
        inferred: list[int | None] = []
        for row in range(self.count):
            near = (other for other in range(row) if self._classes[row][other] != _SYS)
            first = next(near, None)
            inferred.append(row if first is None else inferred[first])
        return tuple(inferred)


def _nvlinks(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Return the NVLink lanes between each two GPUs; the lower number if the directions differ."""
    count, links = len(topology.gpus), topology.links
    return tuple(tuple(min(lanes(links[a][b]), lanes(links[b][a])) for b in range(count)) for a in range(count))


def _pcie_classes(topology: Topology, wired: Sequence[Sequence[int]]) -> list[list[int | None]]:
    """Return the rank of the PCIe class between each two GPUs; None if NVLink hides it and it cannot be inferred.

    PCIe classes form a tree, so a class that NVLink hides follows from the classes of both to a third GPU or card.
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
    """Return the rank of a PCIe class that NVLink hides."""
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
