"""A machine's topology with what else is known of it, ready to be shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from provision.errors import UsageError
from provision.model import Topology

__all__ = ["GpuDetails", "MachineTopology", "NicDetails", "chosen_gpus"]

_RANGE_ENDS = 2


@dataclass(frozen=True)
class GpuDetails:
    """What a matrix does not tell of a GPU."""

    product: str = ""
    pcie_generation: int | None = None
    """The highest that the GPU can; it lowers it while idle."""
    pcie_width: int | None = None


@dataclass(frozen=True)
class NicDetails:
    """What a matrix does not tell of a network card."""

    rate_gbit: float | None = None
    link_layer: str = ""
    """``InfiniBand`` or ``Ethernet``."""
    active: bool = False


@dataclass(frozen=True)
class MachineTopology:
    """What ``provision topo`` shows."""

    topology: Topology
    node: str | None = None
    """None when the matrix came from a file."""
    simulated: tuple[str, ...] = ()
    """Stand-ins of the lab on the node, as ``thing: what it stands in for``."""
    gpus: Mapping[int, GpuDetails] = field(default_factory=dict)
    nics: Mapping[str, NicDetails] = field(default_factory=dict)
    chosen: tuple[int, ...] = ()
    """Indices of GPUs to be marked."""

    def names(self) -> tuple[str, ...]:
        """Return what the rows of the matrix are called."""
        topology = self.topology
        return (*(f"GPU{gpu.index}" for gpu in topology.gpus), *(nic.name for nic in topology.nics))

    def is_chosen(self, row: int) -> bool:
        """Return whether a row of the matrix is a GPU that is to be marked."""
        return row < len(self.topology.gpus) and self.topology.gpus[row].index in self.chosen


def chosen_gpus(text: str, topology: Topology) -> tuple[int, ...]:
    """Return the GPUs that ``0,2-3`` names, in ascending order.

    Raises:
        UsageError: it is no such list, or the machine has no such GPU.
    """
    found: set[int] = set()
    for part in text.split(","):
        ends = part.strip().split("-")
        if len(ends) > _RANGE_ENDS or not all(end.isdecimal() and len(end) < 4 for end in ends):  # noqa: PLR2004
            raise UsageError(f"--gpus {text}: {part!r} is no GPU", remedy="Give indices as 0,1,2,3 or 0-3.")
        found.update(range(int(ends[0]), int(ends[-1]) + 1))
    there = {gpu.index for gpu in topology.gpus}
    unknown = sorted(found - there)
    if unknown or not found:
        shown = ", ".join(map(str, unknown)) or text
        known = ", ".join(str(index) for index in sorted(there))
        raise UsageError(f"--gpus: the machine has no GPU {shown}", remedy=f"It has: {known}.")
    return tuple(sorted(found))
