"""How much of linear speed-up is reached."""

from __future__ import annotations

import dataclasses

import pytest

from provision.benchmarks import efficiencies, parse
from provision.benchmarks.scaling import percent
from tests.support.benchmark import rendered


def run_of(gpus, total, **changes):
    """Read a rendered output back."""
    return parse(rendered(gpus=gpus, total=total, **changes), f"{gpus}.log")[0][0]


@pytest.mark.row(55)
def test_efficiency_is_against_the_run_on_one_gpu():
    """T(n) / (n T(1)), from the totals."""
    runs = [run_of(16, 1600.0), run_of(1, 200.0), run_of(8, 1200.0)]

    assert efficiencies(runs) == [0.5, 1.0, 0.75]


def test_another_workload_is_no_base():
    """Model, batch and kind of device must be the same; the case of the model's name need not."""
    base = run_of(1, 100.0)

    assert efficiencies([base, run_of(2, 150.0, model="ResNet50")])[1] == 0.75
    for other in ({"model": "vgg16"}, {"batch": 32}, {"device": "CPU"}):
        assert efficiencies([base, run_of(2, 150.0, **other)])[1] is None


def test_without_a_base_nothing_is_made_up():
    """None of no run on one GPU, and of one that did nothing."""
    assert efficiencies([run_of(2, 150.0)]) == [None]
    assert efficiencies([run_of(2, 150.0), run_of(1, 0.0)]) == [None, None]


def test_several_runs_on_one_gpu_are_averaged():
    """No run is picked to flatter."""
    assert efficiencies([run_of(1, 90.0), run_of(1, 110.0), run_of(2, 150.0)])[2] == 0.75


def test_each_setting_is_measured_by_its_own_run_on_one_gpu():
    """Where it has one: what is slower on one GPU is not called badly scaled for it."""
    fast = [dataclasses.replace(run, label="fast") for run in (run_of(1, 100.0), run_of(2, 150.0))]
    slow = [dataclasses.replace(run, label="slow") for run in (run_of(1, 50.0), run_of(2, 100.0))]

    assert efficiencies([*fast, *slow]) == [1.0, 0.75, 1.0, 1.0]
    assert efficiencies([fast[0], slow[1]])[1] == 0.5


@pytest.mark.parametrize(
    ("fraction", "printed"),
    [
        (12299 / (16 * 819), "93.85%"),
        (0.999999, "99.99%"),
        (0.57, "57.00%"),
        (1.0, "100.00%"),
        (1.0426, "104.26%"),
        (0.00001, "0.00%"),
        (None, "-"),
    ],
)
def test_per_cent_are_cut_and_not_rounded(fraction, printed):
    """93.8568 is not 93.86; and what is whole in decimals is not cut below itself by its binary form."""
    assert percent(fraction) == printed
