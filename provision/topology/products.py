"""Link rates of products in tenths of GB/s in one direction, as in NCCL's model.

NVLink rates are those of NCCL's ``topo.h``; PCIe rates are its values for 16 lanes of a generation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from provision.model.gpu_products import ARCHITECTURES, Lanes, find_architecture, find_product

DEFAULT_LANE = 200
"""One NVLink lane of an unknown product."""
DEFAULT_PCIE = 120
"""A PCIe slot of unknown generation."""
DEFAULT_NIC = 125
"""A network card of unknown rate: 100 Gbit/s."""


_CAPABILITIES: tuple[tuple[tuple[int, int], Lanes], ...] = (
    ((10, 0), Lanes(401)),
    ((9, 0), Lanes(206)),
    ((8, 7), Lanes(200)),
    ((8, 6), Lanes(120)),
    ((7, 0), Lanes(200)),
    ((6, 0), Lanes(180)),
)
"""By the first compute capability they apply to, newest first."""

PCIE: Mapping[int, int] = {1: 30, 2: 60, 3: 120, 4: 240, 5: 480, 6: 960}
"""Generation -> tenths of GB/s of 16 lanes."""
_PCIE_WIDTH = 16

INTER_CPU: Mapping[str, int] = {
    "broadwell": 60,
    "skylake": 100,
    "icelake": 100,
    "sapphire-rapids": 220,
    "emerald-rapids": 400,
    "amd": 160,
    "zhaoxin": 60,
    "power9": 320,
    "arm": 60,
}
"""Kind of CPU -> tenths of GB/s between two sockets."""


def lanes(product: str, capability: str = "") -> Lanes | None:
    """Return the NVLink lanes of a product (``H100``, ``NVIDIA H100 80GB HBM3``), else of its compute capability.

    The name of an architecture (``hopper``) means its typical product. None for unknown products and those without
    NVLink.
    """
    known = find_product(typical_product(product) or product)
    if known is not None and known.nvlink is not None:
        return known.nvlink
    match = re.fullmatch(r"(\d{1,2})\.(\d)", capability)
    if not match:
        return None
    version = (int(match[1]), int(match[2]))
    return next((known for since, known in _CAPABILITIES if version >= since), None)


def typical_product(name: str) -> str:
    """Return the typical product of an architecture; an empty string for any other name."""
    known = ARCHITECTURES.get(find_architecture(name)) if find_product(name) is None else None
    return known.typical if known else ""


def pcie_rate(generation: int, width: int = _PCIE_WIDTH) -> int | None:
    """Return the tenths of GB/s of a PCIe slot; None for an unknown generation."""
    whole = PCIE.get(generation)
    return None if whole is None else whole * min(width, _PCIE_WIDTH) // _PCIE_WIDTH


def nic_rate(gbit: float) -> int:
    """Return the tenths of GB/s of a port with `gbit` Gbit/s."""
    return int(gbit * 10) // 8
