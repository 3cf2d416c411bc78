"""Scaling efficiency."""

from __future__ import annotations

import dataclasses

import pytest

from provision.benchmarks import Record, efficiencies, parse
from provision.benchmarks.configurations import of_file, of_records
from provision.benchmarks.scaling import percent
from tests.support.benchmark import rendered


def run_of(gpus, total, **changes):
    """Parse a rendered output."""
    return parse(rendered(gpus=gpus, total=total, **changes), f"{gpus}.log")[0][0]


@pytest.mark.row(55)
def test_efficiency_is_relative_to_the_run_on_one_gpu():
    """T(n) / (n T(1)), from the totals."""
    runs = [run_of(16, 1600.0), run_of(1, 200.0), run_of(8, 1200.0)]

    assert efficiencies(runs) == [0.5, 1.0, 0.75]


def test_another_workload_is_no_baseline():
    """Model, batch and kind of device must be equal; the case of the model's name does not matter."""
    base = run_of(1, 100.0)

    assert efficiencies([base, run_of(2, 150.0, model="ResNet50")])[1] == 0.75
    for other in ({"model": "vgg16"}, {"batch": 32}, {"device": "CPU"}):
        assert efficiencies([base, run_of(2, 150.0, **other)])[1] is None


def test_without_a_baseline_there_is_no_efficiency():
    assert efficiencies([run_of(2, 150.0)]) == [None]
    assert efficiencies([run_of(2, 150.0), run_of(1, 0.0)]) == [None, None]


def test_several_runs_on_one_gpu_are_averaged():
    assert efficiencies([run_of(1, 90.0), run_of(1, 110.0), run_of(2, 150.0)])[2] == 0.75


def test_each_configuration_has_its_own_baseline():
    fast = [dataclasses.replace(run, label="fast") for run in (run_of(1, 100.0), run_of(2, 150.0))]
    slow = [dataclasses.replace(run, label="slow") for run in (run_of(1, 50.0), run_of(2, 100.0))]

    assert efficiencies([*fast, *slow]) == [1.0, 0.75, 1.0, 1.0]
    assert efficiencies([fast[0], slow[1]])[1] == 0.5


def test_baselines_of_two_configurations_are_never_mixed():
    """The efficiency of one configuration does not change beside another; one without a baseline has none."""
    slow = [dataclasses.replace(run_of(n, total), configuration="tcp") for n, total in ((1, 780.0), (16, 11863.5))]
    fast = [dataclasses.replace(run_of(n, total), configuration="rdma") for n, total in ((1, 829.0), (16, 12998.7))]
    other = dataclasses.replace(run_of(16, 12000.0), configuration="other")

    assert [percent(share) for share in efficiencies([*slow, *fast, other])][1:4:2] == ["95.06%", "97.99%"]
    assert efficiencies([*slow, *fast, other])[4] is None
    assert efficiencies([*slow, other])[2] == pytest.approx(12000 / (16 * 780))


@pytest.mark.parametrize(
    ("label", "counts", "name"),
    [
        ("tcp-16.log", [16], "tcp"),
        ("tcp_16gpus.log.gz", [16], "tcp"),
        ("np8-tcp.txt", [8], "tcp"),
        ("16gpu.log", [16], ""),
        ("2nodes-16-rdma.out", [16], "rdma"),
        ("on/tcp-8.log", [8], "on/tcp"),
        ("vgg16.log", [16], "vgg16"),
        ("vgg16-16.log", [16], "vgg16"),
        ("run-1.log", [1, 8, 16], "run-1"),
        ("run-2.log", [16], "run-2"),
        ("-", [1], ""),
    ],
)
def test_a_files_configuration_is_its_name_without_the_number_of_gpus(label, counts, name):
    assert of_file(label, counts) == name


def test_stored_results_with_other_settings_are_separate_configurations():
    """Options and variables count, the number of iterations does not."""
    records = [
        Record("1", "resnet50", "", command="p --num-iters 10"),
        Record("2", "resnet50", "", command="p --num-iters 20"),
        Record("3", "resnet50", "", command="p --num-iters 10", environment={"NCCL_ALGO": "Ring"}),
        Record("4", "other", "", options="--gdr"),
    ]

    assert of_records(records[:2]) == ["resnet50", "resnet50"]
    first, second, third, other = of_records(records)
    assert (first, third, other) == (second, "resnet50 (NCCL_ALGO=Ring)", "other")
    assert first == "resnet50"


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
def test_percentages_are_truncated(fraction, printed):
    """93.8568 becomes 93.85; binary rounding does not reduce exact decimals."""
    assert percent(fraction) == printed
