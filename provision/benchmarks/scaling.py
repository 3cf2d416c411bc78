"""How much of linear speed-up a run reaches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from provision.benchmarks.base import Run

__all__ = ["bases", "efficiencies", "percent"]

Workload = tuple[str, int | None, str]


def efficiencies(runs: Sequence[Run]) -> list[float | None]:
    """Return T(n) / (n T(1)) of each run: total images per second against those of one device, as a fraction.

    T(1) is as of `bases`; without one, or where it is zero, the answer is None.
    """
    return [run.total / (run.gpus * base) if base else None for run, base in zip(runs, bases(runs), strict=True)]


def bases(runs: Sequence[Run]) -> list[float | None]:
    """Return T(1) of each run: the total of the one-device run of the same model, batch and kind of device.

    One of the same label comes first, so that each of several settings is measured by its own; else any among `runs`
    will do. It is the mean where there are several, and None where there is none.
    """
    own: dict[tuple[str, Workload], list[float]] = {}
    common: dict[Workload, list[float]] = {}
    for run in runs:
        if run.gpus == 1:
            own.setdefault((run.label, run.workload), []).append(run.total)
            common.setdefault(run.workload, []).append(run.total)
    found = [own.get((run.label, run.workload)) or common.get(run.workload) for run in runs]
    return [sum(totals) / len(totals) if totals else None for totals in found]


def percent(fraction: float | None) -> str:
    """Return a fraction in per cent with two decimals, cut and not rounded: 93.856 is ``93.85%``; ``-`` for None."""
    if fraction is None:
        return "-"
    hundredths = math.floor(round(fraction * 10_000, 6))  # 0.57 * 10000 falls short of 5700
    return f"{hundredths // 100}.{hundredths % 100:02d}%"
