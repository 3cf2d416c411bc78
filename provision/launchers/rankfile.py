"""Open MPI's rank file: which CPUs each rank runs on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from provision.errors import UsageError
from provision.launchers.base import HostEntry
from provision.model import NodePlacement, RankPlacement


def render(nodes: Sequence[NodePlacement]) -> str:
    """Return a line ``rank N=NAME slot=CPUS`` for each rank; CPUs have the operating system's numbers.

    Raises:
        UsageError: a rank has no CPUs to be bound to.
    """
    lines: list[str] = []
    for node in nodes:
        for local, rank in enumerate(node.ranks):
            if not rank.cpus:
                raise UsageError(
                    f"it is not known which CPUs rank {local} of {node.node} should run on",
                    remedy="A rank file names CPUs; give them by --placement, or use a host file.",
                )
            lines.append(f"rank {len(lines)}={node.node} slot={ranges(rank.cpus)}\n")
    return "".join(lines)


def ranges(cpus: Sequence[int]) -> str:
    """Write CPU numbers as ``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def even_placement(entries: Sequence[HostEntry]) -> list[NodePlacement]:
    """Return a placement in which the ranks of a node share its CPUs evenly, in the order of their numbers.

    A node with fewer CPUs than ranks has several ranks on one.
    """
    return [
        NodePlacement(entry.name, entry.address, tuple(RankPlacement(cpus=cpus) for cpus in _shares(entry)))
        for entry in entries
    ]


def _shares(entry: HostEntry) -> list[tuple[int, ...]]:
    if not entry.cpus:
        return [()] * entry.slots
    if entry.cpus < entry.slots:
        return [(rank % entry.cpus,) for rank in range(entry.slots)]
    edges = [rank * entry.cpus // entry.slots for rank in range(entry.slots + 1)]
    return [tuple(range(first, last)) for first, last in itertools.pairwise(edges)]
