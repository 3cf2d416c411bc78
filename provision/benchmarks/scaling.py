"""Scaling efficiency: the share of linear speed-up that a run reaches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from provision.benchmarks.base import Run


def efficiencies(runs: Sequence[Run]) -> list[float | None]:
    """Return T(n) / (n T(1)) of each run: total images per second against those of one device, as a fraction.

    T(1) comes from `bases`; without it, or if it is zero, the result is None.
    """
    return [run.total / (run.gpus * base) if base else None for run, base in zip(runs, bases(runs), strict=True)]


def bases(runs: Sequence[Run]) -> list[float | None]:
    """Return T(1) of each run: the total of the one-device run of the same model, batch and kind of device.

    It is from the same configuration, or else from the only configuration that has one: baselines of different
    configurations are never mixed. It is the mean if a configuration has several, and None without one.
    """
    totals = [[other.total for other in base_runs(run, runs)] for run in runs]
    return [sum(baseline) / len(baseline) if baseline else None for baseline in totals]


def base_runs(run: Run, runs: Sequence[Run]) -> list[Run]:
    """Return the one-device runs that are the baseline of `run`."""
    single = [other for other in runs if other.gpus == 1 and other.workload == run.workload]
    own = [other for other in single if other.series == run.series]
    return own or (single if len({other.series for other in single}) == 1 else [])


def percent(fraction: float | None) -> str:
    """Format a fraction in per cent with two decimals, truncated: 93.856 is ``93.85%``; ``-`` for None."""
    if fraction is None:
        return "-"
    hundredths = math.floor(round(fraction * 10_000, 6))  # 0.57 * 10000 is slightly below 5700
    return f"{hundredths // 100}.{hundredths % 100:02d}%"
