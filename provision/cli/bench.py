"""``provision bench``: synthetic training benchmarks and their results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provision.cli import bench_ab, bench_run
from provision.cli.common import JsonOption, print_json, say, show
from provision.errors import ProvisionError, UsageError

if TYPE_CHECKING:
    from provision.workflow.benchmarks import Results

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Measure and compare training throughput.

\b
Examples:
  provision bench scale --model resnet50 --batch-size 256
  provision bench table 1gpu.log 8gpu.log 16gpu.log
  provision bench compare topology.log default.log
""",
)

FilesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME=]FILE...",
        help="Outputs of benchmarks, optionally compressed with gzip, and their configuration's name; - reads stdin.",
    ),
]
SourcesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[[NAME=]FILE|NAME...]", help="Outputs, or names or ids of stored results. [all stored results]"
    ),
]

app.command("run")(bench_run.run)
app.command("scale")(bench_run.scale)
app.command("ab")(bench_ab.ab)


@app.command("parse")
def parse(files: FilesArgument, as_json: JsonOption = False) -> None:
    """Read the output of training benchmarks.

    Prints a row for each run.

    The format is that of Horovod's example programs and of `provision bench run`: Model, Batch size, Number of GPUs,
    Iter #k, Img/sec per GPU and Total img/sec. The output can contain rank tags of mpirun, colors, time stamps and
    other lines. The efficiency is the fraction of linear speed-up over the run on one GPU with the same
    model and batch in the files. The exit code is 1 when a file has no result, or a run ended without one.

    \b
    Examples:
      provision bench parse job.log
      provision bench parse --json 1gpu.log 8gpu.log
    """
    from provision.report.bench_report import runs_document, runs_text

    results = _loaded(files)
    if as_json:
        print_json(runs_document(results.runs, results.unfinished, results.empty))
    else:
        show(runs_text(results.runs))
    raise typer.Exit(0 if results.complete else 1)


@app.command("table")
def table(sources: SourcesArgument = None, as_json: JsonOption = False) -> None:
    """Show throughput and scaling efficiency.

    The rows are by model, batch size and number of GPUs.

    The efficiency is T(n) / (n T(1)), in percent, truncated to two decimals; --json has the fraction. T(1) is the run
    on one GPU with the same model and batch, of the same configuration, or of the only configuration that has one. A
    configuration is the name of a stored result, or a file's name without the number of GPUs: tcp-1.log and tcp-16.log
    are one configuration. NAME=FILE sets another name.

    \b
    Examples:
      provision bench table 1gpu.log 8gpu.log 16gpu.log
      provision bench table tcp=monday.log tcp=tuesday.log
      provision bench table --json *.log
      provision bench table resnet50-lightcc
    """
    import dataclasses

    from provision.report.bench_report import runs_document, runs_text

    results = _loaded(_chosen(sources))
    results = dataclasses.replace(
        results,
        runs=tuple(sorted(results.runs, key=lambda run: (run.workload[0], run.batch or 0, run.device, run.gpus))),
    )
    if as_json:
        print_json(runs_document(results.runs, results.unfinished, results.empty))
    else:
        show(runs_text(results.runs))
    raise typer.Exit(0 if results.complete else 1)


@app.command("compare")
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="One output, or name or id of stored results.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two results, with their noise.

    Reports how much faster one is, and whether the difference is significant.

    Runs with the same model, batch and number of GPUs are compared; a file can contain several, also repeated ones.
    A difference is real if Welch's t-test over the iterations (over the runs, if each side has three or more of
    the same) rejects equal means at 99 %, and it is at least 1 %. Without iterations the printed bands decide:
    separate bands are real, overlapping ones are noise. Iterations of one run are correlated; repeat runs to verify
    small differences.

    \b
    Examples:
      provision bench compare topology.log default.log
      provision bench compare --json gdr-on.log gdr-off.log
      provision bench compare resnet50-lightcc resnet50
    """
    from provision.benchmarks import compare as compared
    from provision.report.bench_report import compare_document, compare_text

    left, right = _loaded([a]), _loaded([b])
    pairs, only_a, only_b = compared(left.runs, right.runs)
    if not pairs:
        raise ProvisionError(
            f"{a} and {b} have no run of the same model, batch and number of GPUs",
            remedy="Compare runs of the same size. `provision bench table A B` shows them.",
        )
    if as_json:
        print_json(compare_document(a, b, pairs, only_a, only_b))
    else:
        show(compare_text(a, b, pairs, only_a, only_b))
    raise typer.Exit(0 if left.complete and right.complete else 1)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the results stored on this machine.

    Shows time, name, number of GPUs and throughput.

    \b
    Examples:
      provision bench list
      provision bench list --json
    """
    from provision.report.bench_report import stored_document, stored_text
    from provision.workflow.benchmark_files import folder, stored_records

    results = stored_records()
    if as_json:
        print_json(stored_document(results))
    elif results:
        show(stored_text(results))
    else:
        say(f"no stored results in {folder()}; to create one, run: provision bench run")


@app.command("report")
def report(
    file: Annotated[Path, typer.Argument(metavar="FILE.html", help="Page to write, with the figures in FILE.json.")],
    sources: SourcesArgument = None,
    title: Annotated[str, typer.Option("--title", metavar="TEXT", help="Title of the page.")] = "Training benchmarks",
    as_json: JsonOption = False,
) -> None:
    """Write an HTML report about benchmarks.

    The page shows the runs, the hardware, the throughput, and which differences are significant.

    The page has plots with error bars, tables and verdicts, and requires neither network nor scripts. The same figures
    are written as JSON. Figures of simulated hardware are labelled. A page of the same name is replaced.

    \b
    Examples:
      provision bench report report.html
      provision bench report --title 'LightCC' lightcc.html resnet50 with-lightcc
      provision bench report scaling.html 1gpu.log 8gpu.log 16gpu.log
    """
    from provision import __version__
    from provision.report.bench_html import as_document, as_html
    from provision.workflow.bench_runs import now

    beside = _beside(file)
    results = _loaded(_chosen(sources))
    about: dict[str, Any] = {"generated": now(), "version": __version__, "title": title}
    document = as_document(results.runs, results.records, **about)
    for target, text in (
        (file, as_html(results.runs, results.records, **about)),
        (beside, json.dumps(document, indent=2) + "\n"),
    ):
        _write(target, text)
    if as_json:
        print_json(document)
    say(f"written: {file} and {beside}")
    raise typer.Exit(0 if results.complete else 1)


def _beside(file: Path) -> Path:
    """Return the path of the figures.

    Raises:
        UsageError: A name is invalid, or a file exists that is not an earlier report.
    """
    if file.suffix not in {".html", ".htm"}:
        raise UsageError(
            f"{file}: the page's name must end with .html", remedy="Specify the page first, then its sources."
        )
    beside = file.with_suffix(".json")
    if beside.exists():
        try:
            ours = {"generated", "runs", "comparisons"} <= json.loads(beside.read_text(encoding="utf-8")).keys()
        except (OSError, ValueError, AttributeError):
            ours = False
        if not ours:
            raise UsageError(f"{beside} exists and is not a report", remedy="Specify another name for the page.")
    return beside


def _write(target: Path, text: str) -> None:
    try:
        target.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ProvisionError(
            f"{target} cannot be written: {error.strerror}",
            remedy="Check that its folder exists and that you may write there.",
        ) from error


def _chosen(sources: list[str] | None) -> list[str]:
    """Return the sources, by default all stored results.

    Raises:
        UsageError: No sources are given, and there are no stored results.
    """
    from provision.workflow.benchmark_files import stored_records

    words = sources or [record.id for record in stored_records() if record.runs]
    if not words:
        raise UsageError(
            "there are no stored results", remedy="Specify outputs, or create a result: provision bench run"
        )
    return words


def _loaded(words: list[str]) -> Results:
    """Return the results of the sources; report missing ones on stderr."""
    from provision.workflow.benchmarks import load

    results = load(words)
    for label in results.empty:
        say(f"error: {label}: contains no result of a training benchmark")
    for run in results.unfinished:
        say(f"error: {run.reason}")
    return results
