"""Whether two results really differ, or only by what one run differs from the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from provision.benchmarks.base import Run

__all__ = ["Comparison", "Verdict", "compare"]

SMALLEST_DIFFERENCE = 0.01
"""A smaller difference is never called real: iterations of one run share its placement and its clock speeds, so that
they differ less from each other than one run does from the next."""

_FEWEST_SAMPLES = 3
_STEP = 0.1
"""The benchmark prints one decimal."""

_T99 = (
    *(63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169),
    *(3.106, 3.055, 3.012, 2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845),
    *(2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750),
)
"""Student's t, two-sided 99 %, for 1 to 30 degrees of freedom; the last one serves for more, on the safe side."""


class Verdict(StrEnum):
    """What a difference is."""

    REAL = "real"
    NOISE = "noise"
    UNKNOWN = "unknown"
    """There is nothing to tell by: neither iterations nor a band were printed."""


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
    """The ratio's 99 % band; None where it cannot be told."""
    verdict: Verdict
    method: str
    """``runs``, ``iterations``, ``bands`` or ``none``: what the verdict is drawn from, see `compare`."""

    @property
    def faster(self) -> str | None:
        """Return ``a`` or ``b``; None when the verdict is not that the difference is real."""
        if self.verdict is not Verdict.REAL:
            return None
        return "a" if self.a_total > self.b_total else "b"

    @property
    def speedup(self) -> float | None:
        """How many times the slower is the faster, 1 or more."""
        return max(self.ratio, 1 / self.ratio) if self.ratio else None


@dataclass(frozen=True)
class _Mean:
    """A mean of images per second and device, and how far it may be off."""

    value: float
    variance: float
    """Of the mean."""
    freedom: float
    """Degrees of freedom of that variance."""


def compare(a: Sequence[Run], b: Sequence[Run]) -> tuple[list[Comparison], list[Run], list[Run]]:
    """Compare the runs of two sides; return the comparisons, and the runs of each side that have no counterpart.

    Runs are counterparts when model, batch, kind and number of devices are the same. The samples are the means of the
    runs where both sides have three or more (``runs``), else the iterations of all runs (``iterations``). A difference
    is real when Welch's t-test, which takes the two sides' noise for different, rejects equal means at 99 %, and the
    means differ by at least `SMALLEST_DIFFERENCE`. The variance of a mean also holds the rounding of the printed
    figures, so that equal figures do not count as free of noise. The ratio's band is Fieller's of the same level: it
    holds 1 exactly when the test does not reject. Where a side has fewer than three samples, the printed bands decide:
    apart is real, overlapping is noise (``bands``); the ratio's band then goes from corner to corner of theirs.
    """
    left, right = _grouped(a), _grouped(b)
    found = [_compared(runs, right[key]) for key, runs in left.items() if key in right]
    only_a = [run for key, runs in left.items() if key not in right for run in runs]
    only_b = [run for key, runs in right.items() if key not in left for run in runs]
    return found, only_a, only_b


def _grouped(runs: Sequence[Run]) -> dict[tuple[tuple[str, int | None, str], int], list[Run]]:
    groups: dict[tuple[tuple[str, int | None, str], int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.workload, run.gpus), []).append(run)
    return groups


def _compared(a: Sequence[Run], b: Sequence[Run]) -> Comparison:
    a_total, b_total = _average([run.total for run in a]), _average([run.total for run in b])
    method, verdict, low, high = _judged(a, b)
    if verdict is Verdict.REAL and abs(a_total - b_total) < SMALLEST_DIFFERENCE * min(a_total, b_total):
        verdict = Verdict.NOISE
    ratio = a_total / b_total if b_total > 0 else None
    return Comparison(a[0], b[0], a_total, b_total, ratio, low, high, verdict, method)


def _judged(a: Sequence[Run], b: Sequence[Run]) -> tuple[str, Verdict, float | None, float | None]:
    for method, one, other in (
        ("runs", [run.img_per_sec_per_gpu for run in a], [run.img_per_sec_per_gpu for run in b]),
        ("iterations", _iterations(a), _iterations(b)),
    ):
        if min(len(one), len(other)) >= _FEWEST_SAMPLES:
            return method, *_welch(_mean(one), _mean(other))
    if len(a) == len(b) == 1 and a[0].plus_minus is not None and b[0].plus_minus is not None:
        return "bands", *_apart(a[0], b[0])
    return "none", Verdict.UNKNOWN, None, None


def _iterations(runs: Sequence[Run]) -> list[float]:
    return [value for run in runs for value in run.iterations]


def _mean(samples: Sequence[float]) -> _Mean:
    count, value = len(samples), _average(samples)
    spread = sum((sample - value) ** 2 for sample in samples) / (count - 1)
    return _Mean(value, spread / count + _STEP**2 / 12, count - 1)


def _welch(a: _Mean, b: _Mean) -> tuple[Verdict, float | None, float | None]:
    """Return the verdict and the ratio's band."""
    freedom = (a.variance + b.variance) ** 2 / (a.variance**2 / a.freedom + b.variance**2 / b.freedom)
    limit = _T99[min(max(int(freedom), 1), len(_T99)) - 1]
    rejected = abs(a.value - b.value) > limit * math.sqrt(a.variance + b.variance)
    return Verdict.REAL if rejected else Verdict.NOISE, *_fieller(a, b, limit)


def _fieller(a: _Mean, b: _Mean, limit: float) -> tuple[float | None, float | None]:
    """Return the ratios r for which a - r b is not further from zero than `limit` of its standard deviations."""
    square, half, constant = (
        b.value**2 - limit**2 * b.variance,
        a.value * b.value,
        a.value**2 - limit**2 * a.variance,
    )
    root = half**2 - square * constant
    if square <= 0 or root < 0:  # b may as well be zero: any ratio would do
        return None, None
    return (half - math.sqrt(root)) / square, (half + math.sqrt(root)) / square


def _apart(a: Run, b: Run) -> tuple[Verdict, float | None, float | None]:
    (a_low, a_high), (b_low, b_high) = _band(a), _band(b)
    verdict = Verdict.REAL if a_low > b_high or b_low > a_high else Verdict.NOISE
    return verdict, *((a_low / b_high, a_high / b_low) if b_low > 0 else (None, None))


def _band(run: Run) -> tuple[float, float]:
    """Return the figures that were printed as possible, with what rounding may have taken."""
    half = (run.plus_minus or 0.0) + _STEP / 2
    return max(0.0, run.img_per_sec_per_gpu - half), run.img_per_sec_per_gpu + half


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)
