"""``provision bench``: synthetic training benchmarks, from their outputs to a verdict."""

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

__all__ = ["app"]

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
        help="Outputs of benchmarks, also packed by gzip, and their configuration's name; - is standard input.",
    ),
]
SourcesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[[NAME=]FILE|NAME...]", help="Outputs, or names or ids of kept results. [all that is kept]"
    ),
]

app.command("run")(bench_run.run)
app.command("scale")(bench_run.scale)
app.command("ab")(bench_ab.ab)


@app.command("parse")
def parse(files: FilesArgument, as_json: JsonOption = False) -> None:
    """Read the output of training benchmarks.

    Prints a row for each run.

    The form is that of Horovod's example programs and of `provision bench run`: Model, Batch size, Number of GPUs,
    Iter #k, Img/sec per GPU and Total img/sec. Rank tags of mpirun, colours and time stamps may be in it, and other
    lines between. The efficiency is the fraction of linear speed-up over the run on one GPU with the same
    model and batch among the files. The exit code is 1 when a file has no result, or a run ended without one.

    \b
    Examples:
      provision bench parse job.log
      provision bench parse --json 1gpu.log 8gpu.log
    """
    from provision.report.bench_report import runs_document, runs_text

    found = _loaded(files)
    if as_json:
        print_json(runs_document(found.runs, found.unfinished, found.empty))
    else:
        show(runs_text(found.runs))
    raise typer.Exit(0 if found.complete else 1)


@app.command("table")
def table(sources: SourcesArgument = None, as_json: JsonOption = False) -> None:
    """Show throughput and scaling efficiency.

    The rows are by model, batch size and number of GPUs.

    The efficiency is T(n) / (n T(1)), in per cent cut to two decimals; --json has the fraction. T(1) is the run on one
    GPU with the same model and batch, of the same configuration, or of the only configuration that has one. A
    configuration is a kept name, or a file's name without the number of GPUs: tcp-1.log and tcp-16.log are one.
    NAME=FILE gives another name.

    \b
    Examples:
      provision bench table 1gpu.log 8gpu.log 16gpu.log
      provision bench table tcp=monday.log tcp=tuesday.log
      provision bench table --json *.log
      provision bench table resnet50-lightcc
    """
    import dataclasses

    from provision.report.bench_report import runs_document, runs_text

    found = _loaded(_chosen(sources))
    found = dataclasses.replace(
        found, runs=tuple(sorted(found.runs, key=lambda run: (run.workload[0], run.batch or 0, run.device, run.gpus)))
    )
    if as_json:
        print_json(runs_document(found.runs, found.unfinished, found.empty))
    else:
        show(runs_text(found.runs))
    raise typer.Exit(0 if found.complete else 1)


@app.command("compare")
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="One output, or name or id of kept results.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two results, with their noise.

    Reports how much faster one is, and whether that is real or noise.

    Runs of the same model, batch and number of GPUs are compared; a file may hold several, also repeated ones.
    A difference is real when Welch's t-test over the iterations (over the runs, where each side has three or more of
    the same) rejects equal means at 99 %, and it is at least 1 %. Without iterations the printed bands decide:
    apart is real, overlapping is noise. Iterations of one run are alike; repeat runs to be sure of small differences.

    \b
    Examples:
      provision bench compare topology.log default.log
      provision bench compare --json gdr-on.log gdr-off.log
      provision bench compare resnet50-lightcc resnet50
    """
    from provision.benchmarks import compare as compared
    from provision.report.bench_report import compare_document, compare_text

    left, right = _loaded([a]), _loaded([b])
    found, only_a, only_b = compared(left.runs, right.runs)
    if not found:
        raise ProvisionError(
            f"{a} and {b} have no run of the same model, batch and number of GPUs",
            remedy="Compare like with like; `provision bench table A B` shows what is in them.",
        )
    if as_json:
        print_json(compare_document(a, b, found, only_a, only_b))
    else:
        show(compare_text(a, b, found, only_a, only_b))
    raise typer.Exit(0 if left.complete and right.complete else 1)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the results stored on this machine.

    Shows when, which, on how many GPUs, and how fast.

    \b
    Examples:
      provision bench list
      provision bench list --json
    """
    from provision.report.bench_report import stored_document, stored_text
    from provision.workflow.benchmark_files import folder, stored_records

    found = stored_records()
    if as_json:
        print_json(stored_document(found))
    elif found:
        show(stored_text(found))
    else:
        say(f"no result is kept in {folder()}; `provision bench run` makes one")


@app.command("report")
def report(
    file: Annotated[Path, typer.Argument(metavar="FILE.html", help="The page to write; FILE.json goes beside it.")],
    sources: SourcesArgument = None,
    title: Annotated[str, typer.Option("--title", metavar="TEXT", help="The page's heading.")] = "Training benchmarks",
    as_json: JsonOption = False,
) -> None:
    """Write an HTML report about benchmarks.

    The page says what ran, on what, how fast, and what is real.

    The page has plots with error bars, tables and verdicts, and needs neither network nor scripts. The same figures go
    beside it as JSON. Figures of simulated hardware are marked so. A page of the same name is replaced.

    \b
    Examples:
      provision bench report report.html
      provision bench report --title 'LightCC on 2 nodes' lightcc.html resnet50 resnet50-lightcc
      provision bench report scaling.html 1gpu.log 8gpu.log 16gpu.log
    """
    from provision import __version__
    from provision.report.bench_html import as_document, as_html
    from provision.workflow.bench_runs import now

    beside = _beside(file)
    found = _loaded(_chosen(sources))
    about: dict[str, Any] = {"generated": now(), "version": __version__, "title": title}
    document = as_document(found.runs, found.records, **about)
    for target, text in (
        (file, as_html(found.runs, found.records, **about)),
        (beside, json.dumps(document, indent=2) + "\n"),
    ):
        _write(target, text)
    if as_json:
        print_json(document)
    say(f"written: {file} and {beside}")
    raise typer.Exit(0 if found.complete else 1)


def _beside(file: Path) -> Path:
    """Return where the figures go.

    Raises:
        UsageError: the names do not do, or there is a file that is not of an earlier report.
    """
    if file.suffix not in {".html", ".htm"}:
        raise UsageError(
            f"{file}: the page's name must end with .html", remedy="Name the page first, then its sources."
        )
    beside = file.with_suffix(".json")
    if beside.exists():
        try:
            ours = {"generated", "runs", "comparisons"} <= json.loads(beside.read_text(encoding="utf-8")).keys()
        except (OSError, ValueError, AttributeError):
            ours = False
        if not ours:
            raise UsageError(f"{beside} is there already and no report of ours", remedy="Give the page another name.")
    return beside


def _write(target: Path, text: str) -> None:
    try:
        target.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ProvisionError(
            f"{target} cannot be written: {error.strerror}", remedy="Does its folder exist, and is it yours?"
        ) from error


def _chosen(sources: list[str] | None) -> list[str]:
    """Return the sources, or all that is kept.

    Raises:
        UsageError: nothing is named, and nothing is kept.
    """
    from provision.workflow.benchmark_files import stored_records

    words = sources or [record.id for record in stored_records() if record.runs]
    if not words:
        raise UsageError("no result is kept on this machine", remedy="Name outputs, or make one: provision bench run")
    return words


def _loaded(words: list[str]) -> Results:
    """Return what the sources hold; what they lack is said on stderr."""
    from provision.workflow.benchmarks import load

    found = load(words)
    for label in found.empty:
        say(f"error: {label}: no result of a training benchmark is in it")
    for run in found.unfinished:
        say(f"error: {run.reason}")
    return found
