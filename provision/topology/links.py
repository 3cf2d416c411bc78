"""Link classes between GPUs and network cards."""

from __future__ import annotations

import re
from collections.abc import Mapping

from provision.model import Topology

SELF = "X"
PCIE_CLASSES = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Nearest first."""
NEAR = frozenset({"PIX", "PXB"})
"""Classes below the host bridge, the only ones over which GPUs and cards exchange data without the host."""
_NVLINK = re.compile(r"NV([0-9]{1,2})")


def lanes(link: str) -> int:
    """Return the NVLink lanes of a link class, or 0 for a PCIe class."""
    match = _NVLINK.fullmatch(link)
    return int(match[1]) if match else 0


def card_links(topology: Topology) -> Mapping[int, Mapping[str, str]]:
    """Return GPU index -> network card -> link class."""
    count = len(topology.gpus)
    names = [nic.name for nic in topology.nics]
    return {
        gpu.index: dict(zip(names, row[count:], strict=True))
        for gpu, row in zip(topology.gpus, topology.links, strict=False)
    }
