"""A machine as a tree: NUMA node, then groups of the PCIe tree, then GPUs and network cards.

PCIe classes form a tree, so devices that are linked by a class or a nearer one, directly or through others, are one
group (single linkage). NVLink hides the PCIe class between two GPUs; a card near both reveals it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from provision.model import Topology
from provision.topology.links import PCIE_CLASSES

_GROUPED = ("PIX", "PXB", "PHB")
"""Classes within one NUMA node that form a group, nearest first."""


@dataclass(frozen=True)
class Group:
    """Devices that are linked by `kind` or a nearer class, in addition to those of its subgroups."""

    kind: str
    devices: tuple[int, ...] = ()
    """Rows of the matrix that are in no subgroup, in order."""
    groups: tuple[Group, ...] = ()

    def members(self) -> tuple[int, ...]:
        """Return all rows in order, including those of subgroups."""
        return tuple(sorted([*self.devices, *(row for group in self.groups for row in group.members())]))


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node, or, if unknown, the CPUs near its GPUs; both are empty for devices without any affinity."""

    numa: int | None
    cpus: tuple[str, ...]
    devices: tuple[int, ...] = ()
    groups: tuple[Group, ...] = ()

    def members(self) -> tuple[int, ...]:
        """Return all rows in order."""
        return Group("", self.devices, self.groups).members()


def tree(topology: Topology) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes of a machine ordered by their first devices, the one without any affinity last."""
    parts = _grouped(topology, range(len(topology.links)), len(_GROUPED))
    homes: dict[tuple[int | None, tuple[str, ...]], list[int | Group]] = {}
    for part in parts:
        homes.setdefault(_locality(topology, _rows(part), parts), []).append(part)
    numa_nodes = [
        NumaNode(numa, _cpus(topology, [row for part in members for row in _rows(part)]), *_sorted(members))
        for (numa, cpus), parts_at_home in homes.items()
        for members in (_apart(topology, parts_at_home) if numa is None and cpus else [parts_at_home])
    ]
    return tuple(
        sorted(
            numa_nodes, key=lambda numa_node: (numa_node.numa is None and not numa_node.cpus, numa_node.members()[0])
        )
    )


def _rows(part: int | Group) -> tuple[int, ...]:
    return (part,) if isinstance(part, int) else part.members()


def _sorted(parts: Iterable[int | Group]) -> tuple[tuple[int, ...], tuple[Group, ...]]:
    """Separate devices from groups; groups are ordered by their first devices, GPUs before cards."""
    listed = list(parts)
    groups = sorted((part for part in listed if isinstance(part, Group)), key=Group.members)
    return tuple(part for part in listed if isinstance(part, int)), tuple(groups)


def _grouped(topology: Topology, rows: Sequence[int], level: int) -> list[int | Group]:
    """Return the groups of `rows` by the first `level` classes; a group that equals its only subgroup is omitted."""
    if level == 0:
        return list(rows)
    near = frozenset(_GROUPED[:level])
    parts: list[int | Group] = []
    for members in _linked(topology, rows, near):
        within = _grouped(topology, members, level - 1)
        if len(members) == 1 or len(within) == 1:
            parts += within
        else:
            parts.append(Group(_GROUPED[level - 1], *_sorted(within)))
    return parts


def _linked(topology: Topology, rows: Sequence[int], near: frozenset[str]) -> Iterator[list[int]]:
    """Yield the sets of rows that are connected by links of these classes."""
    left = list(rows)
    while left:
        connected, fresh = [], [left.pop(0)]
        while fresh:
            row = fresh.pop()
            connected.append(row)
            joined = [other for other in left if topology.links[row][other] in near]
            left = [other for other in left if other not in joined]
            fresh += joined
        yield sorted(connected)


def _apart(topology: Topology, parts: Sequence[int | Group]) -> Iterator[list[int | Group]]:
    """Yield parts that can be on one NUMA node, because the CPU affinity may be that of a job instead of the GPUs."""
    left = list(parts)
    while left:
        together, fresh = [], [left.pop(0)]
        while fresh:
            part = fresh.pop()
            together.append(part)
            joined = [other for other in left if not _across(topology, _rows(part), _rows(other))]
            left = [other for other in left if other not in joined]
            fresh += joined
        yield sorted(together, key=_rows)


def _across(topology: Topology, rows: Sequence[int], others: Sequence[int]) -> bool:
    """Return whether the only known PCIe class between two parts is that across NUMA nodes."""
    known = {topology.links[row][other] for row in rows for other in others} & set(PCIE_CLASSES)
    return known == {PCIE_CLASSES[-1]}


def _locality(
    topology: Topology, rows: Sequence[int], parts: Sequence[int | Group]
) -> tuple[int | None, tuple[str, ...]]:
    """Return the NUMA node of devices, or the CPUs; cards without either belong to parts that are NODE to them."""
    reported = _affinity(topology, rows)
    if reported is not None:
        return reported
    neighbours = {
        home
        for part in parts
        if any(topology.links[row][other] == PCIE_CLASSES[3] for row in rows for other in _rows(part))
        and (home := _affinity(topology, _rows(part))) is not None
    }
    return neighbours.pop() if len(neighbours) == 1 else (None, ())


def _affinity(topology: Topology, rows: Sequence[int]) -> tuple[int | None, tuple[str, ...]] | None:
    """Return the affinity of the first of `rows` that has one, GPUs before cards."""
    count = len(topology.gpus)
    numas = [topology.gpus[row].numa if row < count else topology.nics[row - count].numa for row in rows]
    numa = next((node for node in numas if node is not None), None)
    if numa is not None:
        return numa, ()
    cpus = _cpus(topology, rows)
    return (None, cpus) if cpus else None


def _cpus(topology: Topology, rows: Sequence[int]) -> tuple[str, ...]:
    affinities = (topology.gpus[row].cpus for row in rows if row < len(topology.gpus))
    return next((cpus for cpus in affinities if cpus), ())
