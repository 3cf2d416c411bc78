"""Tables of benchmark results: what a person reads, in 80 columns."""

from __future__ import annotations

import dataclasses

import pytest

from provision.benchmarks import Record, Run, compare
from provision.report.bench_report import compare_text, runs_text, stored_text

LONG = Run(
    label="a very long name of a file that is too long to type.log",
    model="mobilenet_v3_large_of_our_own",
    batch=1024,
    gpus=1024,
    img_per_sec_per_gpu=12345.6,
    plus_minus=123.4,
    total=12641894.4,
    total_plus_minus=126361.6,
    simulated=True,
)
RECORD = Record(id="20261122-100311123-ab12", name="a name of some length", started="", runs=(LONG,))


@pytest.mark.parametrize(
    "text",
    [
        runs_text([LONG]),
        compare_text("a", "b", *compare([LONG], [dataclasses.replace(LONG, img_per_sec_per_gpu=1.0, total=1024.0)])),
        stored_text([RECORD]),
    ],
    ids=["runs", "compare", "kept"],
)
def test_long_names_and_values_fit(text):
    """No table is wider than 80 columns; long texts are truncated or wrapped, numbers never."""
    assert max(map(len, text.splitlines())) <= 80
    assert "12641894.4" in text


def test_simulated_gpus_are_marked_in_every_table():
    """Each line with a value of SIMULATED GPUs is marked."""
    assert "SIMULATED" in runs_text([LONG])
    assert "SIMULATED" in compare_text("a", "b", *compare([LONG], [LONG]))
    assert "SIMULATED" not in runs_text([dataclasses.replace(LONG, simulated=False)])
