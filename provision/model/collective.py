"""The result of an all-reduce over the nodes' containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Collective"]


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
