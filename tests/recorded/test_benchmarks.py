"""Benchmark results of the reference documents: parsed, compared and printed as they show them."""

from __future__ import annotations

import pytest

from provision.benchmarks import Verdict, compare, parse
from tests.recorded.data import document, outputs_in
from tests.unit.benchmarks.test_compare import runs_of
from tests.unit.benchmarks.test_training_bench import printed
from tests.unit.cli.test_bench import assert_documented_speedups

ACK = ("ack-topology-aware-scheduling-zh.txt", "ack-topology-aware-scheduling-ja.txt")


@pytest.mark.row(20)
def test_the_recorded_differences_are_reported_as_real(capsys, tmp_path):
    """1.89x and 1.06x, whichever side is named first."""
    vgg_aware, vgg_default, resnet_aware, resnet_default = outputs_in(document("ack-topology-aware-scheduling-zh.txt"))
    aware, default = tmp_path / "aware.log", tmp_path / "default.log"
    aware.write_text(vgg_aware + resnet_aware)
    default.write_text(vgg_default + resnet_default)

    assert_documented_speedups(capsys, aware, default)


@pytest.mark.row(20)
@pytest.mark.parametrize("name", ACK)
def test_the_recorded_differences_are_real(name):
    """Topology-aware placement and the default one, as recorded by the vendor: 1.89x and 1.06x."""
    vgg_aware, vgg_default, resnet_aware, resnet_default = outputs_in(document(name))
    result, _, _ = compare(runs_of(vgg_aware, resnet_aware), runs_of(vgg_default, resnet_default))

    assert [(item.a.model, f"{item.ratio:.2f}x") for item in result] == [("vgg16", "1.89x"), ("resnet50", "1.06x")]
    assert [item.verdict for item in result] == [Verdict.REAL] * 2
    assert [item.method for item in result] == ["iterations"] * 2
    assert all(item.low < item.ratio < item.high for item in result)


@pytest.mark.parametrize("number", range(4))
def test_mean_and_band_match_the_recorded_outputs(bench, number):
    """The recorded iterations give the recorded results, within their rounding."""
    recorded = parse(outputs_in(document("ack-topology-aware-scheduling-zh.txt"))[number])[0][0]
    (mine,), _ = parse(printed(bench, recorded.iterations, size=recorded.gpus)[0])

    assert mine.img_per_sec_per_gpu == pytest.approx(recorded.img_per_sec_per_gpu, abs=0.11)
    assert mine.plus_minus == pytest.approx(recorded.plus_minus, abs=0.11)
    assert mine.total == pytest.approx(recorded.total, abs=0.41)
    assert mine.total_plus_minus == pytest.approx(recorded.total_plus_minus, abs=0.41)


@pytest.mark.row(19)
@pytest.mark.parametrize("name", ACK)
def test_the_recorded_outputs_are_read_completely(name):
    """Per model, with and without topology: the vendor's own values, ten iterations each."""
    runs, unfinished = parse("".join(outputs_in(document(name))), name)

    assert unfinished == []
    assert [(run.model, run.batch, run.gpus, run.total, run.total_plus_minus) for run in runs] == [
        ("vgg16", 64, 4, 820.5, 2.5),
        ("vgg16", 64, 4, 435.2, 21.1),
        ("resnet50", 64, 4, 1321.9, 3.2),
        ("resnet50", 64, 4, 1251.8, 5.3),
    ]
    assert [len(run.iterations) for run in runs] == [10] * 4
    assert parse(document(name), name)[0] == runs
