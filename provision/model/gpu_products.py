"""GPU products and architectures: names, compute capabilities and NVLink lanes."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Lanes:
    """The NVLink lanes of a product."""

    rate: int
    """Bandwidth of one lane per direction in tenths of GB/s, as in NCCL's ``topo.h``."""
    count: int | None = None
    """Lanes per GPU; None if that varies or is unknown."""


@dataclass(frozen=True)
class GpuArchitecture:
    """Properties of all GPUs of one architecture."""

    capabilities: tuple[str, ...] = ()
    """Prefixes of compute capabilities; empty if another architecture has the same ones."""
    typical: str = ""
    """The product whose NVLink is assumed if only the architecture is known."""


@dataclass(frozen=True)
class GpuProduct:
    """One product."""

    name: str
    architecture: str
    nvlink: Lanes | None = None


ARCHITECTURES: Mapping[str, GpuArchitecture] = {
    "maxwell": GpuArchitecture(("5.",)),
    "pascal": GpuArchitecture(("6.",), "P100"),
    "volta": GpuArchitecture(("7.0", "7.2"), "V100"),
    "turing": GpuArchitecture(("7.5",), "RTX 8000"),
    "ampere": GpuArchitecture(("8.0", "8.6", "8.7"), "A100"),
    "ada": GpuArchitecture(("8.9",)),
    "grace-hopper": GpuArchitecture((), "GH200"),
    "hopper": GpuArchitecture(("9.",), "H100"),
    "blackwell": GpuArchitecture(("10.", "11.", "12."), "B200"),
}
"""By name, oldest first."""

_BY_LANES: Mapping[str, tuple[tuple[Lanes | None, tuple[str, ...]], ...]] = {
    "maxwell": ((None, ("M40", "M60")),),
    "pascal": ((Lanes(180, 4), ("P100",)), (None, ("P40", "P4", "GTX 10xx"))),
    "volta": ((Lanes(200, 6), ("V100", "V100S")), (None, ("GV100", "TITAN V"))),
    "turing": ((Lanes(200), ("RTX8000", "RTX 8000")), (None, ("T4", "RTX 20xx", "RTX 6000"))),
    "ampere": (
        (Lanes(200, 12), ("A100",)),
        (Lanes(200, 8), ("A800",)),
        (Lanes(120, 4), ("A10", "A40", "A5000", "A6000", "RTX 3090", "3090")),
        (None, ("A30", "A10G", "A16", "A2", "RTX 30xx")),
    ),
    "ada": ((None, ("L4", "L20", "L40", "L40S", "RTX 40xx")),),
    "grace-hopper": ((Lanes(206, 18), ("GH200",)),),
    "hopper": ((Lanes(206, 18), ("H100", "H200", "H20")), (Lanes(206, 8), ("H800",))),
    "blackwell": ((Lanes(401, 18), ("B200", "B300", "GB200", "GB300")), (None, ("B100", "RTX 50xx"))),
}
"""The products of each architecture by their NVLink lanes; ``x`` is any digit."""

_PRODUCTS = tuple(
    GpuProduct(name, architecture, nvlink)
    for architecture, groups in _BY_LANES.items()
    for nvlink, names in groups
    for name in names
)


@functools.cache
def find_product(text: str) -> GpuProduct | None:
    """Return the product that a name contains, such as ``H100`` or ``NVIDIA H100 80GB HBM3``; None if unknown."""
    words = re.sub(r"[^0-9A-Z]+", " ", text.upper())
    matches = [one for one in _PRODUCTS if re.search(rf"(?<![0-9A-Z]){one.name.replace('x', '[0-9]')}(?![0-9])", words)]
    return max(matches, key=lambda one: len(one.name.replace("x", "")), default=None)


@functools.cache
def find_architecture(text: str, capability: str = "") -> str:
    """Return the architecture of a product or of an architecture's own name, else of a compute capability.

    A capability outweighs a product's name, except for an architecture that shares its capability with another one.
    Empty if nothing matches.
    """
    named = re.sub(r"[ _]", "-", text.strip().lower())
    product = find_product(text)
    by_name = named if named in ARCHITECTURES else product.architecture if product else ""
    if by_name and not ARCHITECTURES[by_name].capabilities:
        return by_name
    matches = (
        name
        for name, known in ARCHITECTURES.items()
        if capability and capability.startswith(known.capabilities or ("-",))
    )
    return next(matches, by_name)
