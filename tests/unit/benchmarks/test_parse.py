"""Parsing the output of synthetic training benchmarks."""

from __future__ import annotations

import dataclasses

import pytest

from provision.benchmarks import Run, parse
from tests.support.benchmark import rendered

SPEEDS = (330.5, 331.0, 329.9)
TEXT = rendered(iterations=SPEEDS, gpus=4)
RUN = Run(
    label="job.log",
    model="resnet50",
    batch=64,
    gpus=4,
    img_per_sec_per_gpu=330.5,
    plus_minus=0.8,
    total=1321.9,
    total_plus_minus=3.2,
    iterations=SPEEDS,
)


@pytest.mark.row(19)
def test_every_value_of_an_output_is_read():
    assert parse(TEXT, "job.log") == ([RUN], [])


@pytest.mark.parametrize(
    "caught",
    [
        "".join(f"[1,0]<stdout>:{line}\n" for line in TEXT.splitlines()),
        "".join(f"[prterun-gpu1-77@1,0]<stdout>: {line}\n" for line in TEXT.splitlines()),
        "".join(f"[0] {line}\n" for line in TEXT.splitlines()),
        "".join(f"[1,3]<stderr>:noise[1,0]<stdout>:{line}[1,12]<stdout>:more\n" for line in TEXT.splitlines()),
        "".join(
            f"[1,{rank}]<stdout>:{line if rank == 0 else line.replace('330.5', '3.5')}\n"
            for line in TEXT.splitlines()
            for rank in (2, 0, 1)
        ),
        TEXT.replace("\n", "\r\n"),
        TEXT.replace("\n", "\n 10%|#         | 1/10\r\r"),
        "".join(f"\x1b[1;32m{line}\x1b[0m\x1b]0;title\x07\n" for line in TEXT.splitlines()),
        "".join(f"2026-11-22T10:00:0{number}.1Z {line}\n" for number, line in enumerate(TEXT.splitlines())),
        "".join(f"[12:00:0{number}] {line}\n" for number, line in enumerate(TEXT.splitlines())),
        TEXT.replace("\n", "\nNCCL INFO Channel 00 : 0[0] -> 1[1]\nGPU Model: V100\nModel: of a card\n", 4),
        TEXT.replace("+-", "± "),
        "    " + TEXT.replace("\n", "\n    "),
    ],
    ids=[
        *("open mpi 4", "open mpi 5", "provision run", "ranks share lines", "every rank prints", "windows"),
        *("progress bars", "colours", "time stamps", "a logger", "lines between", "another sign", "indented"),
    ],
)
def test_an_output_is_read_with_any_tags(caught):
    assert parse(caught, "job.log") == ([RUN], [])


def test_an_output_on_cpus_counts_cpus():
    (run,), _ = parse(rendered(iterations=SPEEDS, device="CPU"), "job.log")

    assert run == dataclasses.replace(RUN, device="CPU")
    assert run.workload != RUN.workload


def test_several_runs_in_one_file_are_read():
    """A run without its own header does not become part of the previous one."""
    again = "\n".join(TEXT.splitlines()[5:])
    runs, unfinished = parse(TEXT + rendered(model="vgg16", iterations=[205.0] * 3) + again, "job.log")

    assert [(run.model, run.total) for run in runs] == [("resnet50", 1321.9), ("vgg16", 820.0), (None, 1321.9)]
    assert unfinished == []


def test_an_interrupted_run_is_reported_without_values():
    runs, unfinished = parse("\n".join(TEXT.splitlines()[:7]) + "\nKilled\n" + TEXT, "job.log")

    assert runs == [RUN]
    assert [run.reason for run in unfinished] == [
        "job.log: the run of resnet50 ends after 2 iterations, without a result"
    ]


@pytest.mark.parametrize(
    ("lost", "changed"),
    [
        ("Model", {"model": None}),
        ("Batch", {"batch": None}),
        ("Number", {}),
        ("Iter", {"iterations": ()}),
        ("Total", {"total": 1322.0}),
        ("Img/sec", {"img_per_sec_per_gpu": 330.475}),
    ],
)
def test_a_missing_line_costs_only_its_own_value(lost, changed):
    text = "".join(line for line in TEXT.splitlines(keepends=True) if not line.startswith(lost))
    (run,), _ = parse(text, "job.log")

    assert run == dataclasses.replace(RUN, **changed)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Model: resnet50\nNumber of GPUs: 0\nImg/sec per GPU: 3.0\n",
        "Total img/sec on 0 GPU(s): 12.0 +-1.0\n",
        "Total img/sec on 4 GPU(s): nan +-nan\n",
        "Img/sec per GPU: 205.1 +-0.6\n",
        f"Number of GPUs: {'9' * 5000}\nTotal img/sec on {'9' * 5000} GPU(s): 1.0\n",
        f"Img/sec per GPU: {'9' * 5000}\n",
        "\x00\ufffd[1,]<stdout>:\x1b[",
    ],
)
def test_other_text_gives_no_result_and_raises_nothing(text):
    assert parse(text)[0] == []
