"""Statistical comparison of two benchmark results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, variance

from provision.benchmarks.base import Run

SMALLEST_DIFFERENCE = 0.01
"""Smaller differences are noise: iterations of one run share placement and clock speeds, so they vary less than
repeated runs."""

_FEWEST_SAMPLES = 3
_STEP = 0.1
"""The benchmark prints one decimal."""

_T99 = (
    *(63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169),
    *(3.106, 3.055, 3.012, 2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845),
    *(2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750),
)
"""Student's t, two-sided 99 %, for 1 to 30 degrees of freedom; the last value is a safe limit for more."""


class Verdict(StrEnum):
    """The result of a comparison."""

    REAL = "real"
    NOISE = "noise"
    UNKNOWN = "unknown"
    """Neither iterations nor a confidence band were printed."""


@dataclass(frozen=True)
class Comparison:
    """Two results of the same model, batch and number of devices."""

    a: Run
    b: Run
    """The first run of each side; of several, `a_total` and `b_total` are the means."""
    a_total: float
    b_total: float
    ratio: float | None
    """Throughput of a over that of b; None where b's is zero."""
    low: float | None
    high: float | None
    """The ratio's 99 % band; None if unknown."""
    verdict: Verdict
    method: str
    """The basis of the verdict: ``runs``, ``iterations``, ``bands`` or ``none``, see `compare`."""

    @property
    def faster(self) -> str | None:
        """Return ``a`` or ``b``; None unless the difference is real."""
        if self.verdict is not Verdict.REAL:
            return None
        return "a" if self.a_total > self.b_total else "b"

    @property
    def speedup(self) -> float | None:
        """Return how many times faster the faster side is, at least 1."""
        return max(self.ratio, 1 / self.ratio) if self.ratio else None


@dataclass(frozen=True)
class _Mean:
    """A mean of images per second and device, with its uncertainty."""

    value: float
    variance: float
    """Of the mean."""
    freedom: float
    """Degrees of freedom of that variance."""


def compare(a: Sequence[Run], b: Sequence[Run]) -> tuple[list[Comparison], list[Run], list[Run]]:
    """Compare the runs of two sides; return the comparisons, and the runs of each side without a counterpart.

    Runs are counterparts if model, batch, kind and number of devices are the same. The samples are the means of the
    runs if both sides have at least three (``runs``), else the iterations of all runs (``iterations``). A difference is
    real if Welch's t-test, which allows different variances, rejects equal means at 99 %, and the means differ by at
    least `SMALLEST_DIFFERENCE`. The variance of a mean includes the rounding of the printed values, so equal values
    still have an uncertainty. The ratio's band is Fieller's at the same level: it contains 1 exactly if the test does
    not reject. With fewer than three samples on a side, the printed bands decide (``bands``): disjoint is real,
    overlapping is noise; the ratio's band then spans their extremes.
    """
    left, right = _grouped(a), _grouped(b)
    comparisons = [_comparison(runs, right[key]) for key, runs in left.items() if key in right]
    only_a = [run for key, runs in left.items() if key not in right for run in runs]
    only_b = [run for key, runs in right.items() if key not in left for run in runs]
    return comparisons, only_a, only_b


def _grouped(runs: Sequence[Run]) -> dict[tuple[tuple[str, int | None, str], int], list[Run]]:
    groups: dict[tuple[tuple[str, int | None, str], int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.workload, run.gpus), []).append(run)
    return groups


def _comparison(a: Sequence[Run], b: Sequence[Run]) -> Comparison:
    a_total, b_total = fmean([run.total for run in a]), fmean([run.total for run in b])
    method, verdict, low, high = _evaluate(a, b)
    if verdict is Verdict.REAL and abs(a_total - b_total) < SMALLEST_DIFFERENCE * min(a_total, b_total):
        verdict = Verdict.NOISE
    ratio = a_total / b_total if b_total > 0 else None
    return Comparison(a[0], b[0], a_total, b_total, ratio, low, high, verdict, method)


def _evaluate(a: Sequence[Run], b: Sequence[Run]) -> tuple[str, Verdict, float | None, float | None]:
    for method, first, second in (
        ("runs", [run.img_per_sec_per_gpu for run in a], [run.img_per_sec_per_gpu for run in b]),
        ("iterations", _iterations(a), _iterations(b)),
    ):
        if min(len(first), len(second)) >= _FEWEST_SAMPLES:
            return method, *_welch(_mean(first), _mean(second))
    if len(a) == len(b) == 1 and a[0].plus_minus is not None and b[0].plus_minus is not None:
        return "bands", *_compare_bands(a[0], b[0])
    return "none", Verdict.UNKNOWN, None, None


def _iterations(runs: Sequence[Run]) -> list[float]:
    return [value for run in runs for value in run.iterations]


def _mean(samples: Sequence[float]) -> _Mean:
    count = len(samples)
    return _Mean(fmean(samples), variance(samples) / count + _STEP**2 / 12, count - 1)


def _welch(a: _Mean, b: _Mean) -> tuple[Verdict, float | None, float | None]:
    """Return the verdict and the ratio's band."""
    freedom = (a.variance + b.variance) ** 2 / (a.variance**2 / a.freedom + b.variance**2 / b.freedom)
    limit = _T99[min(max(int(freedom), 1), len(_T99)) - 1]
    rejected = abs(a.value - b.value) > limit * math.sqrt(a.variance + b.variance)
    return Verdict.REAL if rejected else Verdict.NOISE, *_fieller(a, b, limit)


def _fieller(a: _Mean, b: _Mean, limit: float) -> tuple[float | None, float | None]:
    """Return the ratios r for which a - r b is within `limit` of its standard deviations from zero."""
    square, half, constant = (
        b.value**2 - limit**2 * b.variance,
        a.value * b.value,
        a.value**2 - limit**2 * a.variance,
    )
    root = half**2 - square * constant
    if square <= 0 or root < 0:  # b may be zero, so any ratio is possible
        return None, None
    return (half - math.sqrt(root)) / square, (half + math.sqrt(root)) / square


def _compare_bands(a: Run, b: Run) -> tuple[Verdict, float | None, float | None]:
    (a_low, a_high), (b_low, b_high) = _band(a), _band(b)
    verdict = Verdict.REAL if a_low > b_high or b_low > a_high else Verdict.NOISE
    return verdict, *((a_low / b_high, a_high / b_low) if b_low > 0 else (None, None))


def _band(run: Run) -> tuple[float, float]:
    """Return the printed band, extended by rounding."""
    half = (run.plus_minus or 0.0) + _STEP / 2
    return max(0.0, run.img_per_sec_per_gpu - half), run.img_per_sec_per_gpu + half
