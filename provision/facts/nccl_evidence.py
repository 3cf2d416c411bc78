"""What a log of NCCL shows, as values; ``nccl_log.read`` fills them, ``provision.checks.nccl_log`` judges them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Capability", "Device", "NcclLog"]


@dataclass(frozen=True)
class Device:
    """A card as NCCL lists it."""

    names: tuple[str, ...]
    """Without port; more than one when NCCL merged cards into one device."""
    layer: str = ""
    """``IB``, ``RoCE``, or empty when the log does not say."""


@dataclass(frozen=True)
class Capability:
    """What NCCL (or, in lower case, its plugin) says of one card: that GPUDirect would be possible, or is not."""

    plugin: str
    name: str
    enabled: bool
    why: str = ""
    """NCCL's own words in brackets, e.g. ``no module``."""


@dataclass
class NcclLog:
    """The evidence of one log, of all its ranks and communicators together; filled while it is read."""

    lines: int = 0
    """How many lines are NCCL's."""
    versions: dict[str, str] = field(default_factory=dict)
    """Version of NCCL -> that of CUDA for which it was built, empty when not told."""
    channels: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """(plugin, has the suffix /GDRDMA) -> count of network channels; in-network reduction is ``COLLNET/...``."""
    used: set[tuple[str, str, int]] = field(default_factory=set)
    """(host, plugin, number of the device) of the network channels; the host is empty where a line has no prefix."""
    unreadable: str = ""
    """The first network channel of a form that is not known here."""
    inside: set[str] = field(default_factory=set)
    """``P2P`` and ``SHM``: how channels inside a node go."""
    devices: dict[str, dict[int, Device]] = field(default_factory=dict)
    """Host -> number -> card."""
    interfaces: dict[str, None] = field(default_factory=dict)
    """Interfaces that were taken for TCP."""
    without_device: set[str] = field(default_factory=set)
    """Hosts on which NCCL found no RDMA device."""
    networks: dict[str, None] = field(default_factory=dict)
    """Networks that NCCL says it uses."""
    initialized: dict[str, None] = field(default_factory=dict)
    """Networks that NCCL made ready; newer versions alone say so."""
    plugins: dict[str, None] = field(default_factory=dict)
    """External network plugins that were loaded."""
    settings: dict[str, str] = field(default_factory=dict)
    """NCCL's variables that were set and matter here."""
    capabilities: dict[Capability, None] = field(default_factory=dict)
    near: int = 0
    """Pairs of GPU and card for which NCCL allows GPUDirect."""
    far: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(distance, allowed distance) -> count of pairs that NCCL finds too far apart."""
    failed_calls: dict[str, str] = field(default_factory=dict)
    """Verbs call that failed -> the error."""
    warnings: dict[str, None] = field(default_factory=dict)
    """The first warnings."""

    @property
    def version(self) -> str | None:
        """The first version that the log names."""
        return next(iter(self.versions), None)
