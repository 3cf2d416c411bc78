"""How much of linear speed-up is reached."""

from __future__ import annotations

import dataclasses

import pytest

from provision.benchmarks import Record, efficiencies, parse
from provision.benchmarks.configurations import of_file, of_records
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


def test_baselines_of_two_configurations_are_never_mixed():
    """95.06 per cent stays so beside another configuration; a third one has no baseline."""
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
    """The number is a word of its own; a file with several sizes is a configuration by itself."""
    assert of_file(label, counts) == name


def test_stored_results_with_equal_names_and_different_settings_are_separate_configurations():
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
def test_per_cent_are_cut_and_not_rounded(fraction, printed):
    """93.8568 is not 93.86; and what is whole in decimals is not cut below itself by its binary form."""
    assert percent(fraction) == printed
