"""``provision bench ab``: measure several models with two settings, and compare each pair."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.bench_job import Job, Setting
from provision.cli.bench_run import (
    CommandArgument,
    DryRunOption,
    WhereOptions,
    WorkloadOptions,
    benchmark_job,
    probe_for_bench,
)
from provision.cli.common import JsonOption, print_json, say, show
from provision.cli.option_groups import with_option_groups
from provision.errors import NoResult, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provision.benchmarks import Record
    from provision.cli.bench_run import Bench
    from provision.report.json_documents.benchmarks import StoredComparisons

_MODEL = "{model}"


@with_option_groups
def ab(
    command: CommandArgument = None,
    *,
    a: Annotated[str, typer.Option("--a", metavar="WORDS", help="Options of `provision run` of side A.")] = "",
    b: Annotated[str, typer.Option("--b", metavar="WORDS", help="Options of side B.")] = "",
    models: Annotated[str, typer.Option("--models", metavar="NAME,...", help="Comma-separated models.")] = (
        "vgg16,resnet50"
    ),
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", metavar="NP", min=1, help="Number of ranks. [all slots]")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of measurements of each model per side.")] = 1,
    where: WhereOptions,
    workload: WorkloadOptions,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two settings by measuring in turns.

    Reports the effect of a setting per model.

    A and B are options of `provision run`: topology-aware or default placement, a fabric, a preset, a variable. All
    other options are the same. Every run is stored, like those of `bench run`, and the pairs are compared as by
    `bench compare`; with --rounds 3 or more by their means, which is more reliable. In a program of your own, {model}
    is replaced by the model's name. The first run that fails ends the command, with its exit code.

    \b
    Examples:
      provision bench ab --a '--gputopology' --models vgg16,resnet50 -n 4
      provision bench ab --a '--gputopology' --models vgg16 -n 4 --dry-run
      provision bench ab --a '--preset taco --gdr --lightcc' --b '--preset taco'
      provision bench ab --a '--env NCCL_ALGO=Tree' -- python3 bench.py {model}
    """
    if a.split() == b.split():
        raise UsageError("A and B are the same", remedy="Set options for one of them: --a '--gputopology'")
    names = [name.strip() for name in models.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--models {models!r}: contains no model", remedy="For example: --models vgg16,resnet50")
    titles = [Setting(further=words).title for words in (a, b)]
    if titles[0] == titles[1]:
        titles = [f"{title}-{side}" if title else side for title, side in zip(titles, "ab", strict=True)]

    def job(words: str, title: str, model: str) -> Job:
        own = [word.replace(_MODEL, model) for word in command or ()]
        name = "-".join(filter(None, [model, title]))
        return benchmark_job(own, where, Setting(further=words), name, model, workload)

    pairs = [(job(a, titles[0], model), job(b, titles[1], model)) for model in dict.fromkeys(names)]
    bench = probe_for_bench(where)
    (size,) = bench.counted([ranks])
    if dry_run:
        bench.show_commands([(one, size) for pair in pairs for one in pair for _ in range(rounds)], as_json=as_json)
        return
    done: tuple[list[Record], list[Record]] = ([], [])
    code = _measured(bench, pairs * rounds, size, done)
    _tell((a, b), done, code, as_json=as_json)
    raise typer.Exit(code)


def _measured(
    bench: Bench, pairs: Sequence[tuple[Job, Job]], size: int | None, done: tuple[list[Record], list[Record]]
) -> int:
    """Measure in turns, add results of A and B to `done`, and return the exit code of the first failed run."""
    try:
        for pair in pairs:
            for one, records in zip(pair, done, strict=True):
                records.append(bench.measure(one, size))
                if records[-1].exit_code:
                    return records[-1].exit_code
    finally:
        stored = [record.id for records in done for record in records]
        if stored:
            say(f"stored: {', '.join(stored)}; to list them: provision bench list")
    return 0


def _tell(words: tuple[str, str], done: tuple[Sequence[Record], Sequence[Record]], code: int, *, as_json: bool) -> None:
    """Show the comparison of both sides; `code` is the exit code of the first failed run, or 0.

    Raises:
        NoResult: There is nothing to compare.
    """
    from provision.benchmarks import compare
    from provision.report.bench_report import compare_document, compare_text
    from provision.report.redaction import Redactor

    runs = [[run for record in records for run in record.runs] for records in done]
    pairs, only_a, only_b = compare(*runs)
    if not pairs:
        raise NoResult("no model was measured on both sides", code, remedy="Read the output above.", output="")
    text = Redactor().text
    title_a, title_b = (text(shlex.join(shlex.split(side))) or "as `provision run` does" for side in words)
    if as_json:
        ids_a, ids_b = ([record.id for record in records] for records in done)
        document: StoredComparisons = {
            **compare_document(title_a, title_b, pairs, only_a, only_b),
            "kept_a": ids_a,
            "kept_b": ids_b,
        }
        print_json(document)
    else:
        show(compare_text(title_a, title_b, pairs, only_a, only_b))
