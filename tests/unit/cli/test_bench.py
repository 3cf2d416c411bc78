"""The command line of ``provision bench``."""

from __future__ import annotations

import gzip
import io
import json
import sys
from xml.etree import ElementTree as ET

import pytest

from provision.cli.main import main
from tests.support.benchmark import rendered

FIGURES = {"horovod-1": (1, 819), "horovod-8": (8, 6469), "horovod-16": (16, 12299), "lightcc-16": (16, 12532)}
"""The reference's images per second of ResNet50 with a batch of 256, by number of GPUs."""


def exit_of(capsys, *words):
    """Run the command in this process; return exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *map(str, words)])
    out = capsys.readouterr()
    return stopped.value.code, out.out, out.err


def assert_documented_speedups(capsys, aware, default):
    """Compare two files whose models differ by 1.89x and 1.06x, in both orders."""
    code, out, _ = exit_of(capsys, "compare", aware, default)
    vgg, resnet = (" ".join(line.split()) for line in out.splitlines() if "real:" in line)
    assert code == 0
    assert "1.89x" in vgg
    assert "1.06x" in resnet
    assert max(map(len, out.splitlines())) <= 80
    turned = json.loads(exit_of(capsys, "compare", "--json", default, aware)[1])["comparisons"]
    assert [(item["faster"], f"{item['speedup']:.2f}", item["verdict"]) for item in turned] == [
        ("b", "1.89", "real"),
        ("b", "1.06", "real"),
    ]


@pytest.fixture
def figures(tmp_path):
    """One output for each of the reference's figures."""
    files = []
    for name, (gpus, total) in FIGURES.items():
        files.append(tmp_path / f"{name}.log")
        files[-1].write_text(rendered(batch=256, gpus=gpus, total=total))
    return files


@pytest.mark.row(55)
def test_the_reference_figures_give_the_published_efficiencies(capsys, figures):
    """98.73, 93.85 and 95.63 per cent, each in the line of its file."""
    code, out, _ = exit_of(capsys, "table", *figures)
    shown = {line.split()[-1]: line for line in out.splitlines() if line.endswith(".log")}

    assert code == 0
    assert "98.73%" in shown["horovod-8.log"]
    assert "93.85%" in shown["horovod-16.log"]
    assert "95.63%" in shown["lightcc-16.log"]
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("verb", ["parse", "table"])
def test_json_contains_exact_fractions_and_all_documented_keys(capsys, figures, verb):
    """Scripts round for themselves."""
    _, out, _ = exit_of(capsys, verb, "--json", *figures)
    runs = {run["label"]: run for run in json.loads(out)["runs"]}

    assert {name: run["efficiency"] for name, run in runs.items()} == {
        f"{name}.log": pytest.approx(total / gpus / 819) for name, (gpus, total) in FIGURES.items()
    }
    promised = {"model", "batch", "gpus", "img_per_sec_per_gpu", "plus_minus", "total", "efficiency"}
    assert all(promised <= run.keys() for run in runs.values())
    assert runs["horovod-16.log"]["total"] == 12299.0


@pytest.mark.row(20)
def test_differences_beyond_the_noise_are_real(capsys, tmp_path):
    """1.89x and 1.06x, whichever side is named first."""
    speeds = {"vgg16": (206.0, 109.0), "resnet50": (331.0, 312.3)}
    aware, default = tmp_path / "aware.log", tmp_path / "default.log"
    for file, side in ((aware, 0), (default, 1)):
        around = [0.5, -0.5, 0.2, -0.2, 0.0] * 2
        file.write_text(
            "".join(
                rendered(model=model, iterations=[means[side] + noise for noise in around])
                for model, means in speeds.items()
            )
        )

    assert_documented_speedups(capsys, aware, default)


def test_standard_input_and_packed_files_are_read(capsys, monkeypatch, tmp_path):
    """As `nccl-log` does."""
    packed = tmp_path / "job.log.gz"
    packed.write_bytes(gzip.compress(rendered(total=400.0).encode()))
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(rendered(gpus=1, total=200.0).encode())))
    )
    code, out, _ = exit_of(capsys, "parse", "--json", packed, "-")

    assert code == 0
    assert [(run["label"], run["efficiency"]) for run in json.loads(out)["runs"]] == [("job.log.gz", 0.5), ("-", 1.0)]


def test_an_unreadable_file_is_an_error_without_a_traceback(capsys, tmp_path):
    """It is named, with what to do; nothing is printed as a result."""
    loop, cut = tmp_path / "loop", tmp_path / "cut.gz"
    loop.symlink_to(loop)
    cut.write_bytes(gzip.compress(b"x" * 100)[:-9])

    for name, expected, said in [
        (tmp_path / "none.log", 2, "none.log: no such file"),
        (tmp_path, 2, "is a folder"),
        (loop, 1, "loop cannot be read"),
        (cut, 1, "cut.gz cannot be unpacked"),
        ("a\0b", 1, "cannot be read"),
    ]:
        code, out, err = exit_of(capsys, "parse", name)
        assert (code, out) == (expected, "")
        assert said in err
        assert "hint: " in err


def test_an_output_without_a_result_is_reported_and_fails(capsys, tmp_path, figures):
    """The others' results are shown all the same."""
    cut, other = tmp_path / "cut.log", tmp_path / "other.log"
    cut.write_text("Model: vgg16\nIter #0: 1.0 img/sec per GPU\nKilled\n")
    other.write_text("hello\n")

    code, out, err = exit_of(capsys, "parse", cut, other, figures[0])
    assert (code, "horovod-1.log" in out) == (1, True)
    assert "cut.log: the run of vgg16 ends after 1 iteration, without a result" in err
    assert "other.log: contains no result" in err
    code, out, err = exit_of(capsys, "parse", "--json", other)
    assert (code, json.loads(out)["ok"]) == (1, False)
    assert "no result of a training benchmark" in err


def test_files_of_the_same_name_are_distinguished(capsys, tmp_path):
    """By their folders."""
    for folder in ("on", "off"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "job.log").write_text(rendered(total=400.0))
    _, out, _ = exit_of(capsys, "parse", "--json", tmp_path / "on/job.log", tmp_path / "off/job.log")

    assert [run["label"] for run in json.loads(out)["runs"]] == [f"{tmp_path}/on/job.log", f"{tmp_path}/off/job.log"]


def test_results_of_different_workloads_are_not_compared(capsys, figures):
    """One GPU against eight is no comparison."""
    code, out, err = exit_of(capsys, "compare", figures[0], figures[1])

    assert (code, out) == (1, "")
    assert "no run of the same model, batch and number of GPUs" in err


def test_a_report_consists_of_a_page_and_a_json_file(capsys, tmp_path, figures):
    """Both are written, and can be written again."""
    page, beside = tmp_path / "report.html", tmp_path / "report.json"
    for _ in range(2):
        code, out, err = exit_of(capsys, "report", page, "--title", "A & B", *figures)
        assert (code, out) == (0, "")
        assert str(page) in err

    assert "93.85%" in page.read_text()
    assert "<title>A &amp; B</title>" in page.read_text()
    assert [run["label"] for run in json.loads(beside.read_text())["runs"]] == [file.name for file in figures]
    assert json.loads(exit_of(capsys, "report", page, "--json", *figures)[1])["title"] == "Training benchmarks"


def test_a_report_does_not_overwrite_other_files(capsys, tmp_path, figures):
    """A log given first by mistake, or somebody's own figures beside the page, stay as they are."""
    mine = tmp_path / "mine.json"
    mine.write_text('{"runs": []}')
    before = figures[0].read_text()

    for name, said in ((figures[0], "must end with .html"), (tmp_path / "mine.html", "is not a report")):
        code, _, err = exit_of(capsys, "report", name, figures[1])
        assert code == 2
        assert said in err
    assert mine.read_text() == '{"runs": []}'
    assert figures[0].read_text() == before
    assert exit_of(capsys, "report", tmp_path / "none" / "a.html", figures[1])[0] == 1


def test_a_report_without_results_is_refused(capsys, tmp_path, monkeypatch):
    """It says how to get one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    code, _, err = exit_of(capsys, "report", tmp_path / "a.html")

    assert code == 2
    assert "provision bench run" in err
    assert not (tmp_path / "a.html").exists()


def test_a_report_has_a_curve_and_a_colour_for_each_configuration(capsys, tmp_path):
    """Bars and the curve of a configuration share a colour, which no other configuration has."""
    files = []
    for name, total in {"tcp-1": 780.0, "tcp-16": 11863.5, "rdma-1": 829.0, "rdma-16": 12998.7}.items():
        files.append(tmp_path / f"{name}.log")
        files[-1].write_text(rendered(batch=256, gpus=int(name.split("-")[1]), total=total))
    assert exit_of(capsys, "report", tmp_path / "page.html", *files)[0] == 0
    page = ET.fromstring((tmp_path / "page.html").read_text().partition("\n")[2])  # noqa: S314 - our own page
    svg = "{http://www.w3.org/2000/svg}"
    drawn = [(group.get("class"), "".join(group.itertext())) for group in page.iter(f"{svg}g")]
    curves = [
        (group.get("class"), group.find(f"{svg}title").text)
        for group in page.iter(f"{svg}g")
        if len(group.findall(f"{svg}circle")) == 2
    ]

    colours = {name: {colour for colour, text in drawn if f"{name}-" in text} for name in ("tcp", "rdma")}
    assert [len(matches) for matches in colours.values()] == [1, 1]
    assert colours["tcp"] != colours["rdma"]
    assert sorted(curves) == sorted((colour, name) for name, (colour,) in colours.items())


def test_files_of_two_configurations_are_reported_separately(capsys, tmp_path):
    """By their names without the number of GPUs, or by the name that is given with each."""
    totals = {"tcp-1": 780.0, "tcp-16": 11863.5, "rdma-1": 829.0, "rdma-16": 12998.7}
    for name, total in totals.items():
        (tmp_path / f"{name}.log").write_text(rendered(batch=256, gpus=int(name.split("-")[1]), total=total))
    files = [tmp_path / f"{name}.log" for name in totals]
    named = [f"{'slow' if 'tcp' in file.name else 'fast'}={file}" for file in files]

    for sources, names in ((files, ["tcp", "rdma"]), (named, ["slow", "fast"])):
        _, out, _ = exit_of(capsys, "report", tmp_path / "page.html", "--json", *sources)
        runs = [run for run in json.loads(out)["runs"] if run["gpus"] > 1]

        assert [f"{run['efficiency']:.4f}" for run in runs] == ["0.9506", "0.9800"]
        assert (tmp_path / "page.html").read_text().count('class="curve"') == 2
        assert [run["configuration"] for run in runs] == names
