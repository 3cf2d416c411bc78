"""How much of linear speed-up a run reaches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from provision.benchmarks.base import Run

__all__ = ["efficiencies", "percent"]


def efficiencies(runs: Sequence[Run]) -> list[float | None]:
    """Return T(n) / (n T(1)) of each run: total images per second against those of one device, as a fraction.

    T(1) is the total of the one-device run of the same model, batch and kind of device among `runs`, the mean where
    there are several; without one, or where it is zero, the answer is None.
    """
    singles: dict[tuple[str, int | None, str], list[float]] = {}
    for run in runs:
        if run.gpus == 1:
            singles.setdefault(run.workload, []).append(run.total)
    bases = {workload: sum(totals) / len(totals) for workload, totals in singles.items()}
    return [run.total / (run.gpus * base) if (base := bases.get(run.workload)) else None for run in runs]


def percent(fraction: float | None) -> str:
    """Return a fraction in per cent with two decimals, cut and not rounded: 93.856 is ``93.85%``; ``-`` for None."""
    if fraction is None:
        return "-"
    hundredths = math.floor(round(fraction * 10_000, 6))  # 0.57 * 10000 falls short of 5700
    return f"{hundredths // 100}.{hundredths % 100:02d}%"
