"""The topology of a machine with further details, for display."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from provision.errors import UsageError
from provision.model import Topology

_RANGE_ENDS = 2


@dataclass(frozen=True)
class GpuDetails:
    """Properties of a GPU that the matrix does not contain."""

    product: str = ""
    pcie_generation: int | None = None
    """The highest that the GPU supports; an idle GPU lowers its generation."""
    pcie_width: int | None = None


@dataclass(frozen=True)
class NicDetails:
    """Properties of a network card that the matrix does not contain."""

    rate_gbit: float | None = None
    link_layer: str = ""
    """``InfiniBand`` or ``Ethernet``."""
    active: bool = False


@dataclass(frozen=True)
class MachineTopology:
    """The data that ``provision topo`` shows."""

    topology: Topology
    node: str | None = None
    """None if the matrix came from a file."""
    simulated: tuple[str, ...] = ()
    """SIMULATED components of the lab on the node, as ``component: what it replaces``."""
    gpus: Mapping[int, GpuDetails] = field(default_factory=dict)
    nics: Mapping[str, NicDetails] = field(default_factory=dict)
    chosen: tuple[int, ...] = ()
    """Indices of the GPUs to mark."""

    def names(self) -> tuple[str, ...]:
        """Return the labels of the rows of the matrix."""
        topology = self.topology
        return (*(f"GPU{gpu.index}" for gpu in topology.gpus), *(nic.name for nic in topology.nics))

    def is_chosen(self, row: int) -> bool:
        """Return whether a row of the matrix is a GPU to mark."""
        return row < len(self.topology.gpus) and self.topology.gpus[row].index in self.chosen


def chosen_gpus(text: str, topology: Topology) -> tuple[int, ...]:
    """Return the GPU indices in a list such as ``0,2-3``, ascending.

    Raises:
        UsageError: the text is not such a list, or the machine has no such GPU.
    """
    requested: set[int] = set()
    for part in text.split(","):
        ends = part.strip().split("-")
        if len(ends) > _RANGE_ENDS or not all(end.isdecimal() and len(end) < 4 for end in ends):  # noqa: PLR2004
            raise UsageError(f"--gpus {text}: invalid GPU index {part!r}", remedy="Write indices as 0,1,2,3 or 0-3.")
        requested.update(range(int(ends[0]), int(ends[-1]) + 1))
    available = {gpu.index for gpu in topology.gpus}
    unknown = sorted(requested - available)
    if unknown or not requested:
        shown = ", ".join(map(str, unknown)) or text
        known_indices = ", ".join(str(index) for index in sorted(available))
        raise UsageError(f"--gpus: unknown GPU {shown}", remedy=f"Choose from {known_indices}.")
    return tuple(sorted(requested))
