"""What a measurement between the nodes' containers gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Bandwidth", "PairBandwidth", "Port"]


@dataclass(frozen=True, order=True)
class Port:
    """One port of a node's RDMA device."""

    node: str
    device: str
    number: int = 1

    def __str__(self) -> str:
        return f"{self.node} ({self.device}{f' port {self.number}' if self.number != 1 else ''})"


@dataclass(frozen=True)
class PairBandwidth:
    """One measurement, from the container of `a` to that of `b`."""

    a: Port
    b: Port
    memory: str
    """``gpu`` or ``host``, on both ends."""
    gbit_s: float | None
    """None when it failed."""
    line_rate_gbit_s: float | None = None
    """Of the slower of the two ports; None where a port has no rate that means anything (Soft-RoCE)."""
    reason: str = ""
    """Why it failed."""


@dataclass(frozen=True)
class Bandwidth:
    """All that was measured, and who took no part."""

    pairs: tuple[PairBandwidth, ...] = ()
    idle: tuple[str, ...] = ()
    """Nodes that took part."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Node -> why it took no part, through no fault of its data network: busy, without RDMA device, not reached."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """Node -> what is wrong with its data ports; it may have taken part with others."""
    host_memory: str = ""
    """Why GPU memory was not used; empty when it was used in all pairs."""
    tool_lacks: tuple[str, ...] = ()
    """Nodes with real GPUs and a way to them that were measured in host memory, for their perftest cannot do better."""
    sampled: bool = False
    """There were too many nodes for all pairs."""
