"""The evidence in an NCCL log: ``nccl_log.read`` collects it, ``provision.checks.nccl_log`` evaluates it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Device:
    """A card as NCCL lists it."""

    names: tuple[str, ...]
    """Without port; more than one when NCCL merged cards into one device."""
    layer: str = ""
    """``IB``, ``RoCE``, or empty if not logged."""


@dataclass(frozen=True)
class Capability:
    """NCCL's statement (in lower case, its plugin's) on one card: GPUDirect is possible or not."""

    plugin: str
    name: str
    enabled: bool
    why: str = ""
    """NCCL's text in brackets, e.g. ``no module``."""


@dataclass
class NcclLog:
    """The evidence of one log, for all its ranks and communicators."""

    lines: int = 0
    """Number of lines written by NCCL."""
    versions: dict[str, str] = field(default_factory=dict)
    """Version of NCCL -> CUDA version that it was built for, empty if not logged."""
    channels: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """(plugin, has the suffix /GDRDMA) -> count of network channels; in-network reduction is ``COLLNET/...``."""
    used: set[tuple[str, str, int]] = field(default_factory=set)
    """(host, plugin, device number) of the network channels; the host is empty if the line has no prefix."""
    unreadable: str = ""
    """The first network channel in an unknown format."""
    inside: set[str] = field(default_factory=set)
    """``P2P`` and ``SHM``: transports of channels inside a node."""
    devices: dict[str, dict[int, Device]] = field(default_factory=dict)
    """Host -> number -> card."""
    interfaces: dict[str, None] = field(default_factory=dict)
    """Interfaces used for TCP."""
    without_device: set[str] = field(default_factory=set)
    """Hosts without an RDMA device according to NCCL."""
    networks: dict[str, None] = field(default_factory=dict)
    """Networks that NCCL reports as used."""
    initialized: dict[str, None] = field(default_factory=dict)
    """Networks that NCCL initialized; only newer versions log this."""
    plugins: dict[str, None] = field(default_factory=dict)
    """External network plugins that were loaded."""
    settings: dict[str, str] = field(default_factory=dict)
    """Relevant NCCL variables that were set."""
    capabilities: dict[Capability, None] = field(default_factory=dict)
    near: int = 0
    """Pairs of GPU and card for which NCCL allows GPUDirect."""
    far: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(distance, allowed distance) -> number of pairs that are too far apart."""
    failed_calls: dict[str, str] = field(default_factory=dict)
    """Failed verbs call -> error."""
    warnings: dict[str, None] = field(default_factory=dict)
    """The first warnings."""

    @property
    def version(self) -> str | None:
        """The first version in the log."""
        return next(iter(self.versions), None)
