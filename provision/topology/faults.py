"""Faults of a machine, or of the printed text, that its matrix shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from provision.model import Topology
from provision.model.reason import Reason, reason
from provision.topology.links import PCIE_CLASSES, lanes

_MAX_LANES = 18
"""The most NVLink lanes of any GPU. If a row has more, the lanes lead to switches and are counted once per peer."""


@dataclass(frozen=True)
class Fault:
    """One fault."""

    reason: Reason
    gpus: tuple[int, ...] = ()
    """Indices of the GPUs that must not get jobs until the fault is fixed."""
    certain: bool = True
    """False if an intact machine of an unusual design could have the same matrix."""


@lru_cache(maxsize=64)
def find_faults(topology: Topology) -> tuple[Fault, ...]:
    """Return the faults, worst first. The result is cached because nodes of one kind share their matrix."""
    return (*_off_the_fabric(topology), *_asymmetries(topology), *_contradictions(topology))


def switched_lanes(topology: Topology) -> int:
    """Return the NVLink lanes of each GPU to NVLink switches; 0 if GPUs are connected directly or not at all.

    If a row has more lanes than any GPU, the lanes lead to switches, and each GPU has the printed number in total.
    Three or fewer GPUs of a switched machine do not exceed that limit and count as directly connected.
    """
    rows = _nvlinks(topology)
    if max((sum(row) for row in rows), default=0) <= _MAX_LANES:
        return 0
    return _usual(rows)


def _nvlinks(topology: Topology) -> list[list[int]]:
    """Return the NVLink lanes between each two GPUs."""
    count = len(topology.gpus)
    return [[lanes(cell) for cell in row[:count]] for row in topology.links[:count]]


def _usual(rows: Sequence[Sequence[int]]) -> int:
    counts = Counter(cell for row in rows for cell in row if cell)
    return max(counts, key=lambda cell: (counts[cell], cell))


def _off_the_fabric(topology: Topology) -> Iterator[Fault]:
    """Yield faults for GPUs with fewer NVLinks than the others, or none."""
    rows, names = _nvlinks(topology), [gpu.index for gpu in topology.gpus]
    switched = switched_lanes(topology)
    usual, certain = switched or _full_mesh(rows), bool(switched)
    if not usual:
        return
    off = [number for number, row in enumerate(rows) if not any(row)]
    if off:
        rest = len(rows) - len(off)
        code = "topology.no_nvlink" if certain else "topology.no_nvlink_or_bridge"
        indices = tuple(names[number] for number in off)
        gpus = [f"GPU{index}" for index in indices]
        yield Fault(reason(code, gpus=gpus, others=rest, lanes=usual), indices, certain)
    fewer = [number for number, row in enumerate(rows) if number not in off and 0 < max(row) < usual]
    if fewer:
        lanes_of_gpus = [
            reason("topology.lanes_of_gpu", lanes=max(rows[number]), usual=usual, gpu=f"GPU{names[number]}")
            for number in fewer
        ]
        why = reason("topology.fewer_lanes", gpus=lanes_of_gpus)
        yield Fault(why, tuple(names[number] for number in fewer), certain)
    on = [number for number in range(len(rows)) if number not in {*off, *fewer}]
    apart = [(a, b) for a, b in combinations(on, 2) if not rows[a][b] and not rows[b][a]]
    if apart:
        pairs = [reason("topology.pair", a=f"GPU{names[a]}", b=f"GPU{names[b]}") for a, b in apart]
        yield Fault(
            reason("topology.no_nvlink_between", pairs=pairs, lanes=usual),
            tuple(sorted({names[number] for pair in apart for number in pair})),
            certain,
        )


def _full_mesh(rows: Sequence[Sequence[int]]) -> int:
    """Return the lanes per pair if three or more GPUs are connected, all with the same number of lanes; else 0."""
    wired = [number for number, row in enumerate(rows) if any(row)]
    kinds = {rows[a][b] for a in wired for b in wired if a != b}
    return kinds.pop() if len(kinds) == 1 and len(wired) > 2 else 0  # noqa: PLR2004 - a bridge joins two


def _asymmetries(topology: Topology) -> Iterator[Fault]:
    """Yield a fault if the class of a link depends on its direction."""
    names, links = _names(topology), topology.links
    mismatches = [(a, b) for a, b in combinations(range(len(links)), 2) if links[a][b] != links[b][a]]
    if mismatches:
        both = [
            reason("topology.link_directions", a=names[a], b=names[b], forth=links[a][b], back=links[b][a])
            for a, b in mismatches
        ]
        count = len(topology.gpus)
        gpus = {topology.gpus[number].index for pair in mismatches for number in pair if number < count}
        yield Fault(reason("topology.not_symmetric", links=both), tuple(sorted(gpus)))


def _contradictions(topology: Topology) -> Iterator[Fault]:
    """Yield a fault for three devices that fit no tree: in a tree, the two farthest of the three classes are equal."""
    names, near = _names(topology), {kind: rank for rank, kind in enumerate(PCIE_CLASSES)}
    rank = [[near.get(cell, -1) for cell in row] for row in topology.links]
    mismatches = []
    for a, b, c in combinations(range(len(names)), 3):
        least, middle, most = sorted((rank[a][b], rank[a][c], rank[b][c]))
        if least >= 0 and middle != most:
            mismatches.append((a, b, c))
    if mismatches:
        links, (a, b, c) = topology.links, mismatches[0]
        first = reason(
            "topology.three_links",
            a=names[a],
            b=names[b],
            c=names[c],
            ab=links[a][b],
            bc=links[b][c],
            ac=links[a][c],
        )
        more = len(mismatches) - 1 or None
        yield Fault(reason("topology.contradiction", links=first, more=more), certain=False)


def _names(topology: Topology) -> list[str]:
    return [*(f"GPU{gpu.index}" for gpu in topology.gpus), *(nic.name for nic in topology.nics)]
