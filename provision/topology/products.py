"""What the links of products carry: GB/s one way, as whole tenths, as NCCL's own model counts them.

Lanes are those of NCCL's ``topo.h``; PCIe is what it makes of 16 lanes of a generation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "DEFAULT_LANE",
    "DEFAULT_NIC",
    "DEFAULT_PCIE",
    "INTER_CPU",
    "PCIE",
    "Lanes",
    "lanes",
    "nic_rate",
    "pcie_rate",
]

DEFAULT_LANE = 200
"""One NVLink lane where nobody says of which product."""
DEFAULT_PCIE = 120
"""A PCIe slot where nobody says of which generation."""
DEFAULT_NIC = 125
"""A network card where nobody says its rate: 100 Gbit/s."""


@dataclass(frozen=True)
class Lanes:
    """The NVLink lanes of a product."""

    rate: int
    """Tenths of GB/s of one lane, one way."""
    count: int | None = None
    """How many lanes a GPU has; None where that differs or is not known."""


_PASCAL, _VOLTA, _AMPERE = Lanes(180, 4), Lanes(200, 6), Lanes(200, 12)
_CUT_AMPERE, _CUT_HOPPER = Lanes(200, 8), Lanes(206, 8)
_WORKSTATION, _TURING = Lanes(120, 4), Lanes(200)
_HOPPER, _BLACKWELL = Lanes(206, 18), Lanes(401, 18)

_PRODUCTS: Mapping[str, Lanes] = {
    "P100": _PASCAL,
    "V100": _VOLTA,
    "V100S": _VOLTA,
    "A100": _AMPERE,
    "A800": _CUT_AMPERE,
    "A10": _WORKSTATION,
    "A40": _WORKSTATION,
    "A5000": _WORKSTATION,
    "A6000": _WORKSTATION,
    "3090": _WORKSTATION,
    "RTX8000": _TURING,
    "RTX 8000": _TURING,
    "H800": _CUT_HOPPER,
    "H100": _HOPPER,
    "H200": _HOPPER,
    "H20": _HOPPER,
    "GH200": _HOPPER,
    "B200": _BLACKWELL,
    "B300": _BLACKWELL,
    "GB200": _BLACKWELL,
    "GB300": _BLACKWELL,
}
_CAPABILITIES: tuple[tuple[tuple[int, int], Lanes], ...] = (
    ((10, 0), Lanes(_BLACKWELL.rate)),
    ((9, 0), Lanes(_HOPPER.rate)),
    ((8, 7), Lanes(_AMPERE.rate)),
    ((8, 6), Lanes(_WORKSTATION.rate)),
    ((7, 0), Lanes(_VOLTA.rate)),
    ((6, 0), Lanes(_PASCAL.rate)),
)
"""From this compute capability on, newest first."""

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
    """Return the NVLink lanes of a product by its name (``H100``, ``NVIDIA H100 80GB HBM3``), else by its capability.

    None when neither is known; a product without NVLink needs no lanes, and none is returned for it either.
    """
    words = re.sub(r"[^0-9A-Z]+", " ", product.upper())
    for name in sorted(_PRODUCTS, key=len, reverse=True):
        if re.search(rf"(?<![0-9A-Z]){name}(?![0-9])", words):
            return _PRODUCTS[name]
    found = re.fullmatch(r"(\d{1,2})\.(\d)", capability)
    if not found:
        return None
    version = (int(found[1]), int(found[2]))
    return next((known for since, known in _CAPABILITIES if version >= since), None)


def pcie_rate(generation: int, width: int = _PCIE_WIDTH) -> int | None:
    """Return the tenths of GB/s of a PCIe slot; None for a generation that is not known."""
    whole = PCIE.get(generation)
    return None if whole is None else whole * min(width, _PCIE_WIDTH) // _PCIE_WIDTH


def nic_rate(gbit: float) -> int:
    """Return the tenths of GB/s of a port of so many Gbit/s."""
    return int(gbit * 10) // 8
