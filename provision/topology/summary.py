"""A summary of a machine's links in one sentence."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations

from provision.model import Topology
from provision.topology.faults import switched_lanes
from provision.topology.links import NEAR, PCIE_CLASSES, card_links, lanes


@lru_cache(maxsize=64)
def summary(topology: Topology) -> str:
    """Return the links between the GPUs, and the number of GPUs near a network card."""
    count = len(topology.gpus)
    parts = [f"{count} GPU{'s' * (count != 1)}"]
    if count > 1:
        parts.append(nvlinks(topology))
    if topology.nics:
        near = sum(any(kind in NEAR for kind in cards.values()) for cards in card_links(topology).values())
        parts.append(f"{near or 'none'} of the GPUs with a network card behind the same PCIe switches")
    return ", ".join(parts)


def nvlinks(topology: Topology) -> str:
    """Return how NVLink connects the GPUs; without NVLink, the farthest PCIe class among them."""
    count = len(topology.gpus)
    pairs = [topology.links[a][b] for a, b in combinations(range(count), 2)]
    lane_counts = sorted({lanes(link) for link in pairs} - {0})
    if not lane_counts:
        return f"no NVLink, {max(pairs, key=PCIE_CLASSES.index)} at the farthest"
    if switched := switched_lanes(topology):
        return f"connected by NVLink switches, {switched} lanes each"
    numbers = str(lane_counts[0]) if len(lane_counts) == 1 else f"{lane_counts[0]} to {lane_counts[-1]}"
    joined = sum(bool(lanes(link)) for link in pairs)
    return f"NVLinks of {numbers} lanes between {joined} of {len(pairs)} pairs"
