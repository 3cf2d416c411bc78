"""The result of one synthetic training benchmark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """One run; throughput in images per second."""

    label: str
    """The file name, or the name of the stored result."""
    model: str | None
    """As printed, e.g. ``resnet50``; None if not printed."""
    batch: int | None
    """Images per step and device."""
    gpus: int
    """Number of devices, at least 1."""
    img_per_sec_per_gpu: float
    plus_minus: float | None
    """Printed after ``+-``: 1.96 standard deviations of the iterations, for one device; None if not printed."""
    total: float
    """Of all devices together."""
    total_plus_minus: float | None = None
    iterations: tuple[float, ...] = ()
    """Images per second and device of each measured iteration, as printed, with one decimal."""
    device: str = "GPU"
    """The device type in the output: ``GPU`` or ``CPU``."""
    simulated: bool = False
    """Whether a simulated device took part."""
    configuration: str | None = None
    """Runs scale against the one-device run of the same configuration; None: of the same label."""

    @property
    def series(self) -> str:
        """Return the name of its configuration."""
        return self.label if self.configuration is None else self.configuration

    @property
    def workload(self) -> tuple[str, int | None, str]:
        """Return what must be equal in a comparison: model (case-insensitive), batch and kind of device."""
        return (self.model or "").lower(), self.batch, self.device

    @property
    def title(self) -> str:
        """Return the workload as text: ``resnet50, batch 256``."""
        return f"{self.model or 'unnamed model'}, batch {'?' if self.batch is None else self.batch}"

    @property
    def devices(self) -> str:
        """Return number and kind of devices: ``1 GPU``, ``16 GPUs``."""
        return f"{self.gpus} {self.device}{'s' * (self.gpus != 1)}"


@dataclass(frozen=True)
class Unfinished:
    """A run that started and printed no result."""

    label: str
    model: str | None
    iterations: int
    """Number of iterations before the output ended."""

    @property
    def reason(self) -> str:
        """Return a sentence about the run."""
        position = f"after {self.iterations} iteration{'s' * (self.iterations != 1)}"
        return f"{self.label}: the run of {self.model or 'an unnamed model'} ends {position}, without a result"
