"""Faults of a machine, or of the printed text, that its matrix shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from provision.model import Topology
from provision.topology.links import PCIE_CLASSES, lanes

_MAX_LANES = 18
"""The most NVLink lanes of any GPU. If a row has more, the lanes lead to switches and are counted once per peer."""
_MAX_SHOWN = 4


@dataclass(frozen=True)
class Fault:
    """One fault."""

    text: str
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
        yield Fault(
            f"{_gpus(names, off)} without NVLink, while the other {rest} have {usual} lanes to each other"
            + ("" if certain else ", unless a bridge joins just those"),
            tuple(names[number] for number in off),
            certain,
        )
    fewer = [number for number, row in enumerate(rows) if number not in off and 0 < max(row) < usual]
    if fewer:
        shown = ", ".join(f"{max(rows[number])} of {usual} (GPU{names[number]})" for number in fewer)
        yield Fault(f"missing NVLink lanes: {shown}", tuple(names[number] for number in fewer), certain)
    on = [number for number in range(len(rows)) if number not in {*off, *fewer}]
    apart = [(a, b) for a, b in combinations(on, 2) if not rows[a][b] and not rows[b][a]]
    if apart:
        pairs = [f"GPU{names[a]} and GPU{names[b]}" for a, b in apart]
        yield Fault(
            f"no NVLink between {_few(pairs)}, while the others have {usual} lanes to each other",
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
        shown = [f"{names[a]}-{names[b]} {links[a][b]}, {names[b]}-{names[a]} {links[b][a]}" for a, b in mismatches]
        count = len(topology.gpus)
        gpus = {topology.gpus[number].index for pair in mismatches for number in pair if number < count}
        yield Fault(f"the matrix is not symmetric: {_few(shown)}", tuple(sorted(gpus)))


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
        links = topology.links
        shown = [
            f"{names[a]}-{names[b]} {links[a][b]}, {names[b]}-{names[c]} {links[b][c]}, {names[a]}-{names[c]} "
            f"{links[a][c]}"
            for a, b, c in mismatches
        ]
        yield Fault(f"PCIe paths contradict each other: {_few(shown, 1)}", certain=False)


def _names(topology: Topology) -> list[str]:
    return [*(f"GPU{gpu.index}" for gpu in topology.gpus), *(nic.name for nic in topology.nics)]


def _gpus(names: Sequence[int], numbers: Sequence[int]) -> str:
    shown = ", ".join(f"GPU{names[number]}" for number in numbers)
    return f"{shown} {'is' if len(numbers) == 1 else 'are'}"


def _few(items: Sequence[str], most: int = _MAX_SHOWN) -> str:
    more = len(items) - most
    return "; ".join(items[:most]) + (f"; and {more} more" if more > 0 else "")
