"""The result of one synthetic training benchmark."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Run", "Unfinished"]


@dataclass(frozen=True)
class Run:
    """One run; throughput in images per second."""

    label: str
    """Whose result it is: the file's name, or the name under which a result is kept."""
    model: str | None
    """As printed, e.g. ``resnet50``; None where the output does not say."""
    batch: int | None
    """Images per step and device."""
    gpus: int
    """Devices that took part, at least 1."""
    img_per_sec_per_gpu: float
    plus_minus: float | None
    """Printed after ``+-``: 1.96 standard deviations of the iterations, for one device; None where there is none."""
    total: float
    """Of all devices together."""
    total_plus_minus: float | None = None
    iterations: tuple[float, ...] = ()
    """Images per second and device of each measured iteration, as printed, with one decimal."""
    device: str = "GPU"
    """What the output counts: ``GPU`` or ``CPU``."""
    simulated: bool = False
    """A stand-in was among the devices that it ran on."""
    configuration: str | None = None
    """Runs of one configuration scale against its own run on one device; None: those of the same label."""

    @property
    def series(self) -> str:
        """Return the name of its configuration."""
        return self.label if self.configuration is None else self.configuration

    @property
    def workload(self) -> tuple[str, int | None, str]:
        """What may be compared with each other: model (whatever its case), batch and kind of device."""
        return (self.model or "").lower(), self.batch, self.device

    @property
    def title(self) -> str:
        """Return the workload in words: ``resnet50, batch 256``."""
        return f"{self.model or 'unnamed model'}, batch {'?' if self.batch is None else self.batch}"

    @property
    def devices(self) -> str:
        """Return how many of what: ``1 GPU``, ``16 GPUs``."""
        return f"{self.gpus} {self.device}{'s' * (self.gpus != 1)}"


@dataclass(frozen=True)
class Unfinished:
    """A run that began and printed no result."""

    label: str
    model: str | None
    iterations: int
    """As many were measured before the output ended."""

    @property
    def reason(self) -> str:
        """Return what there is of it, as a sentence."""
        seen = f"after {self.iterations} iteration{'s' * (self.iterations != 1)}"
        return f"{self.label}: the run of {self.model or 'an unnamed model'} ends {seen}, without a result"
