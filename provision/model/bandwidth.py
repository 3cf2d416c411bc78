"""Measured bandwidths between pairs of nodes, and of an all-reduce over all nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from provision.model.reason import Reason


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
    """One measurement from the container of `a` to the container of `b`."""

    a: Port
    b: Port
    memory: str
    """``gpu`` or ``host``, on both nodes."""
    gbit_s: float | None
    """None if the measurement failed."""
    line_rate_gbit_s: float | None = None
    """Line rate of the slower port; None if a port has no meaningful rate (Soft-RoCE)."""
    reason: str = ""
    """Why it failed."""


@dataclass(frozen=True)
class Bandwidth:
    """All measurements, and the nodes without one."""

    pairs: tuple[PairBandwidth, ...] = ()
    idle: tuple[str, ...] = ()
    """Measured nodes."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Node -> why it was not measured, for reasons other than its data network: busy, no RDMA device, unreachable."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """Node -> what is wrong with its data ports. The node may have been measured with its other ports."""
    host_memory: tuple[Reason, ...] = ()
    """Why GPU memory was not used; none if it was used in all pairs."""
    tool_lacks: tuple[str, ...] = ()
    """Nodes with GPUDirect RDMA that were measured in host memory because their perftest lacks GPU support."""
    sampled: bool = False
    """True if only a sample of the pairs was measured because there are too many nodes."""


@dataclass(frozen=True)
class Collective:
    """Measured and predicted bandwidth of an all-reduce in GB/s."""

    program: str = ""
    """``nccl-tests``, ``torch (NCCL)``, ``mpi4py`` or ``torch (gloo)``; empty if none could run."""
    memory: str = "host"
    """``gpu`` or ``host``."""
    nodes: tuple[str, ...] = ()
    ranks: int = 0
    size_bytes: int = 0
    """Size of the largest message, at which `bus_bandwidth` was measured."""
    bus_bandwidth: float | None = None
    """None if nothing was measured; `reason` contains the cause."""
    wrong: int = 0
    """Number of wrong elements in the results."""
    predicted: float | None = None
    """Expected bus bandwidth of the same GPUs; None without a prediction, and `not_predicted` contains the cause."""
    not_predicted: str = ""
    minimum: float = 0.0
    """Required fraction of `predicted`."""
    reason: str = ""
    remedy: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Node -> why it was not measured."""
    simulated: bool = False
    """The GPUs are simulated by the lab, so that host memory was measured."""

    @property
    def measured(self) -> bool:
        """Return whether a bandwidth was measured."""
        return self.bus_bandwidth is not None

    @property
    def fraction(self) -> float | None:
        """Return the ratio of measured to predicted bandwidth; None where they cannot be compared."""
        if self.bus_bandwidth is None or not self.predicted or self.memory != "gpu":
            return None
        return self.bus_bandwidth / self.predicted
