"""Outputs of a synthetic training benchmark, rendered from figures in the form that the reference documents."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["rendered"]


def rendered(
    *,
    model: str = "resnet50",
    batch: int = 64,
    gpus: int = 4,
    total: float | None = None,
    band: float | None = 0.8,
    iterations: Sequence[float] = (),
    device: str = "GPU",
) -> str:
    """Return what the benchmark prints; the total is that of the iterations unless it is given."""
    mean = total / gpus if total is not None else sum(iterations) / len(iterations)
    lines = [f"Model: {model}", f"Batch size: {batch}", f"Number of {device}s: {gpus}"]
    lines += ["Running warmup...", "Running benchmark..."]
    lines += [f"Iter #{number}: {value:.1f} img/sec per {device}" for number, value in enumerate(iterations)]
    lines.append(f"Img/sec per {device}: {mean:.1f}" + ("" if band is None else f" +-{band:.1f}"))
    whole = mean * gpus if total is None else total
    lines.append(
        f"Total img/sec on {gpus} {device}(s): {whole:.1f}" + ("" if band is None else f" +-{band * gpus:.1f}")
    )
    return "\n".join(lines) + "\n"
