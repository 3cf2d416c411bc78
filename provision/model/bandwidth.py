"""Measured bandwidths: between pairs of nodes, and of an all-reduce over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Bandwidth", "Collective", "PairBandwidth", "Port"]


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


@dataclass(frozen=True)
class Collective:
    """What was measured, with what, and what the topology predicts; bandwidths are GB/s."""

    program: str = ""
    """``nccl-tests``, ``torch (NCCL)``, ``mpi4py`` or ``torch (gloo)``; empty when none could run."""
    memory: str = "host"
    """``gpu`` or ``host``."""
    nodes: tuple[str, ...] = ()
    ranks: int = 0
    size_bytes: int = 0
    """The largest message, which `bus_bandwidth` is of."""
    bus_bandwidth: float | None = None
    """None when nothing was measured; `reason` says why."""
    wrong: int = 0
    """Elements of the results that were wrong."""
    predicted: float | None = None
    """The expected bus bandwidth of the same GPUs; None where there is none, and `not_predicted` says why."""
    not_predicted: str = ""
    minimum: float = 0.0
    """The fraction of `predicted` that is required."""
    reason: str = ""
    remedy: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Node -> why it took no part."""
    simulated: bool = False
    """GPUs of these nodes are stand-ins of the lab, so that host memory was measured."""

    @property
    def measured(self) -> bool:
        """Whether there is a bandwidth."""
        return self.bus_bandwidth is not None

    @property
    def fraction(self) -> float | None:
        """Return the measured part of the prediction; None where a comparison means nothing."""
        if self.bus_bandwidth is None or not self.predicted or self.memory != "gpu":
            return None
        return self.bus_bandwidth / self.predicted
