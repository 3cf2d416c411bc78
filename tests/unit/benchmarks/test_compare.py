"""Whether a difference between two results is real."""

from __future__ import annotations

import math
import random

import pytest

from provision.benchmarks import Verdict, compare, parse
from provision.benchmarks.compare import _T99
from tests.support.benchmark import rendered


def runs_of(*texts):
    """Parse rendered outputs."""
    return [run for text in texts for run in parse(text)[0]]


def one(a, b):
    """Compare two outputs of one run each."""
    (result,), only_a, only_b = compare(runs_of(a), runs_of(b))
    assert (only_a, only_b) == ([], [])
    return result


def noisy(seed, mean, deviation, count=10):
    """Return iterations of a run."""
    generator = random.Random(seed)  # noqa: S311 - noise for a test
    return [generator.gauss(mean, deviation) for _ in range(count)]


@pytest.mark.row(20)
def test_differences_beyond_the_noise_are_real():
    """Topology-aware placement and the default one: 1.9 times as fast, and 1.06 times."""
    aware = [rendered(model="a", iterations=noisy(1, 206, 1)), rendered(model="b", iterations=noisy(2, 331, 1))]
    default = [rendered(model="a", iterations=noisy(3, 108.4, 8)), rendered(model="b", iterations=noisy(4, 312.3, 2))]
    result, _, _ = compare(runs_of(*aware), runs_of(*default))

    assert [(item.a.model, item.verdict, item.method) for item in result] == [
        ("a", Verdict.REAL, "iterations"),
        ("b", Verdict.REAL, "iterations"),
    ]
    assert [item.ratio for item in result] == [pytest.approx(1.9, abs=0.1), pytest.approx(1.06, abs=0.01)]
    assert all(item.low < item.ratio < item.high for item in result)


def test_the_faster_side_is_reported():
    fast, slow = rendered(iterations=noisy(1, 200, 1)), rendered(iterations=noisy(2, 100, 1))
    forth, back = one(fast, slow), one(slow, fast)

    assert (forth.faster, back.faster) == ("a", "b")
    assert forth.speedup == pytest.approx(back.speedup)
    assert forth.ratio == pytest.approx(1 / back.ratio)


def test_noise_is_rarely_called_real():
    """At most one in a hundred equal pairs is called real, and none below one per cent."""
    called = [one(rendered(iterations=noisy(i, 300, 9)), rendered(iterations=noisy(-i, 300, 9))) for i in range(1, 401)]

    assert sum(item.verdict is Verdict.REAL for item in called) <= 10


def test_a_difference_within_the_noise_is_noise():
    result = one(rendered(iterations=noisy(1, 300, 15)), rendered(iterations=noisy(2, 306, 15)))

    assert (result.verdict, result.faster) == (Verdict.NOISE, None)
    assert result.low < 1 < result.high


def test_the_band_contains_one_exactly_if_equal_means_are_not_rejected():
    """Verdict and band agree, unless the difference is too small to count."""
    for seed in range(60):
        result = one(rendered(iterations=noisy(seed, 300, 5)), rendered(iterations=noisy(-seed - 1, 306, 9)))
        if abs(result.ratio - 1) >= 0.01:
            assert (result.verdict is Verdict.NOISE) == (result.low <= 1 <= result.high)


def test_a_tiny_difference_is_never_real():
    """Runs differ more from each other than their iterations show."""
    tiny = one(rendered(iterations=[1000.0, 1000.1] * 5), rendered(iterations=[1005.0, 1005.1] * 5))

    assert tiny.verdict is Verdict.NOISE
    assert one(rendered(iterations=[1000.0] * 9), rendered(iterations=[1020.0] * 9)).verdict is Verdict.REAL


def test_equal_values_still_have_an_uncertainty():
    """3.2 and 3.3 may be 3.249 and 3.251 before rounding."""
    assert one(rendered(iterations=[3.2] * 9), rendered(iterations=[3.3] * 9)).verdict is Verdict.NOISE


def test_without_iterations_the_bands_decide():
    verdicts = {
        (total, band): one(rendered(total=400.0, band=band), rendered(total=total, band=band))
        for total in (440.0, 416.0)
        for band in (3.0, None)
    }

    assert verdicts[440.0, 3.0].verdict is Verdict.REAL
    assert verdicts[416.0, 3.0].verdict is Verdict.NOISE
    assert {verdicts[key].method for key in ((440.0, 3.0), (416.0, 3.0))} == {"bands"}
    assert (verdicts[440.0, None].verdict, verdicts[440.0, None].method) == (Verdict.UNKNOWN, "none")


def test_repeated_runs_are_compared_by_their_own_variation():
    """Each run is steady, but runs of one side differ as much as the two sides do."""
    left = [rendered(iterations=noisy(i, mean, 0.5)) for i, mean in enumerate((300, 320, 340))]
    right = [rendered(iterations=noisy(-i, mean, 0.5)) for i, mean in enumerate((310, 330, 350), start=1)]
    (result,), _, _ = compare(runs_of(*left), runs_of(*right))

    assert (result.method, result.verdict) == ("runs", Verdict.NOISE)
    assert one(left[0], right[0]).verdict is Verdict.REAL


def test_only_equal_workloads_are_compared():
    mine = runs_of(rendered(total=400.0), rendered(total=800.0, gpus=8), rendered(total=9.0, model="vgg16"))
    others = runs_of(rendered(total=440.0), rendered(total=800.0, gpus=8, batch=32))
    result, only_a, only_b = compare(mine, others)

    assert [(item.a.gpus, item.b.gpus) for item in result] == [(4, 4)]
    assert [run.model for run in only_a] == ["resnet50", "vgg16"]
    assert [run.batch for run in only_b] == [32]


def test_a_zero_result_raises_no_division_error():
    result = one(rendered(total=400.0), rendered(total=0.0))

    assert (result.ratio, result.speedup) == (None, None)


@pytest.mark.parametrize("freedom", [1, 2, 5, 10, 30])
def test_the_critical_values_are_those_of_students_t(freedom):
    """The numerically integrated density outside the value is half a per cent."""
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    steps = 20_000
    width = _T99[freedom - 1] / steps
    inside = sum((1 + ((n + 0.5) * width) ** 2 / freedom) ** (-(freedom + 1) / 2) for n in range(steps))

    assert inside * width * scale == pytest.approx(0.495, abs=1e-5)
