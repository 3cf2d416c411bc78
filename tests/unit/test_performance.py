"""Recorded runs of benchmarks: the gate reports regressions, the page states what was measured and how to repeat it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tools import performance, performance_page
from tools.performance import Measurement, Run

COMMAND = "make bench-nodes BENCH_NODES='--nodes 4 --tasks first'"
RUN = Run(
    benchmark="container_nodes", title="Apply on 4 container nodes", commit="a" * 40, date="2026-11-30",
    processor="A processor", processors=2, memory_gib=24, load_before=1.5, load_after=3.0, ours=["provision apply"],
    notes=["GPUs are SIMULATED."],
    measurements=[
        Measurement("first", 4, "provision apply", 1, 50.0, 20.0, COMMAND),
        Measurement("first", 4, "pyinfra", 1, 100.0, 10.0, COMMAND),
    ],
)  # fmt: skip


def slower(factor: float, cpu: float = 1.0, nodes: int = 4) -> Run:
    """Return a run in which ours takes longer by a factor, on a machine that is three times as slow."""
    ours, other = RUN.measurements
    assert ours.cpu_seconds
    assert other.cpu_seconds
    return replace(
        RUN,
        measurements=[
            replace(ours, nodes=nodes, seconds=3 * factor * ours.seconds, cpu_seconds=3 * cpu * ours.cpu_seconds),
            replace(other, nodes=nodes, seconds=3 * other.seconds, cpu_seconds=3 * other.cpu_seconds),
        ],
    )


def gated(folder: Path, run: Run) -> object:
    """Return the exit code or message of the gate for a run, with `RUN` recorded."""
    performance.write([RUN], folder / "recorded.json")
    performance.write([run], folder / "new.json")
    with pytest.raises(SystemExit) as caught:
        performance.main(["gate", "--runs", str(folder / "new.json"), "--recorded", str(folder / "recorded.json")])
    return caught.value.code


@pytest.mark.parametrize(("factor", "cpu"), [(1.14, 1.0), (1.0, 1.14), (0.5, 0.5)])
def test_the_gate_passes_a_ratio_of_14_percent_more(tmp_path, factor, cpu):
    """Also where the machine is slower as a whole."""
    assert gated(tmp_path, slower(factor, cpu)) == 0


@pytest.mark.parametrize(("factor", "cpu", "what"), [(1.16, 1.0, "time"), (1.0, 1.16, "processor time")])
def test_the_gate_fails_a_ratio_of_16_percent_more(tmp_path, capsys, factor, cpu, what):
    """In time or in processor time, and names task, programs and both ratios."""
    assert gated(tmp_path, slower(factor, cpu)) == 1
    out = capsys.readouterr().out
    assert f"first, 4 nodes: {what} of provision apply / pyinfra: " in out
    assert "(+16%)" in out


def test_the_gate_fails_if_nothing_can_be_compared(tmp_path):
    """A run on another number of nodes passes no gate."""
    assert "no ratio is recorded" in str(gated(tmp_path, slower(1.0, nodes=8)))


def test_runs_with_modified_files_are_not_recorded(tmp_path):
    """Nor does a file appear."""
    performance.write([replace(RUN, commit="")], tmp_path / "new.json")
    with pytest.raises(SystemExit, match="nothing was recorded"):
        performance.main(
            ["record", "--runs", str(tmp_path / "new.json"), "--recorded", str(tmp_path / "recorded.json")]
        )
    assert not (tmp_path / "recorded.json").exists()


def test_a_run_replaces_the_recorded_one_of_its_benchmark(tmp_path):
    """Runs of other benchmarks stay."""
    recorded, new = tmp_path / "recorded.json", tmp_path / "new.json"
    performance.write([RUN, replace(RUN, benchmark="many_nodes")], recorded)
    performance.write([slower(2.0)], new)
    performance.main(["record", "--runs", str(new), "--recorded", str(recorded)])
    assert performance.read(recorded) == [slower(2.0), replace(RUN, benchmark="many_nodes")]


def test_the_page_states_hardware_load_and_the_command_of_each_claim():
    """The ratios are those of the measurements."""
    page = performance_page.page([RUN])
    assert (
        "at commit aaaaaaaaaaaa: 2 processors (A processor), 24 GiB of memory, load average 1.5 before and 3.0 after."
        in page
    )
    assert "| first | 4 | provision apply | 50.00 | 20.00 | 5.000 | 1 |" in page
    assert f"| first | 4 | provision apply / pyinfra | 0.500 | 2.000 | `{COMMAND}` |" in page
    assert "GPUs are SIMULATED." in page
    [picture] = performance_page.pictures([RUN])
    assert f"](../{picture})" in page


def test_recorded_runs_are_valid():
    """Each names its commit, its day and commands that exist, and no path of the machine."""
    runs = performance.read()
    makefile = (performance.ROOT / "Makefile").read_text(encoding="utf-8")
    assert runs
    for run in runs:
        assert re.fullmatch(r"[0-9a-f]{40}", run.commit), run
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", run.date), run
        assert set(run.ours) <= {one.program for one in run.measurements}, run
        for one in run.measurements:
            assert one.seconds > 0, one
            assert re.search(rf"^{one.command.split()[1]}:", makefile, re.MULTILINE), one
    assert not re.search(r"/(tmp|home|root|work)\b", performance.FILE.read_text(encoding="utf-8"))


def test_mitogen_is_measured_with_the_locked_version_of_ansible():
    """A newer Ansible would be compared otherwise."""
    pins = [
        re.search(r"^ansible-core==(\S+)", (performance.ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        for name in ("requirements.lock", "tests/benchmarks/requirements.lock")
    ]
    assert all(pins)
    assert len({pin[1] for pin in pins if pin}) == 1
