"""The classes of links between GPUs and network cards."""

from __future__ import annotations

import re
from collections.abc import Mapping

from provision.model import Topology

__all__ = ["NEAR", "PCIE_CLASSES", "SELF", "card_links", "lanes"]

SELF = "X"
PCIE_CLASSES = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Nearest first."""
NEAR = frozenset({"PIX", "PXB"})
"""Classes that stay below the host bridge, the only ones over which GPUs and cards exchange data without the host."""
_NVLINK = re.compile(r"NV([0-9]{1,2})")


def lanes(link: str) -> int:
    """Return the NVLink lanes of a class, 0 for one of PCIe."""
    found = _NVLINK.fullmatch(link)
    return int(found[1]) if found else 0


def card_links(topology: Topology) -> Mapping[int, Mapping[str, str]]:
    """Return GPU index -> network card -> class."""
    count = len(topology.gpus)
    names = [nic.name for nic in topology.nics]
    return {
        gpu.index: dict(zip(names, row[count:], strict=True))
        for gpu, row in zip(topology.gpus, topology.links, strict=False)
    }
