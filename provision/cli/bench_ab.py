"""``provision bench ab``: several models measured with one setting and with another, and each pair compared."""

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
    look,
)
from provision.cli.common import JsonOption, print_json, say, show
from provision.cli.option_groups import with_option_groups
from provision.errors import NoResult, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provision.benchmarks import Record
    from provision.cli.bench_run import Bench

__all__ = ["ab"]

_MODEL = "{model}"


@with_option_groups
def ab(
    command: CommandArgument = None,
    *,
    a: Annotated[str, typer.Option("--a", metavar="WORDS", help="Options of `provision run` of side A.")] = "",
    b: Annotated[str, typer.Option("--b", metavar="WORDS", help="Options of side B.")] = "",
    models: Annotated[str, typer.Option("--models", metavar="NAME,...", help="Models, one after the other.")] = (
        "vgg16,resnet50"
    ),
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", metavar="NP", min=1, help="Ranks; all slots without it.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Measure each model on both sides so often.")] = 1,
    where: WhereOptions,
    workload: WorkloadOptions,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two settings by measuring in turns.

    Says what a setting is worth, model by model.

    A and B are options of `provision run`: topology-aware placement against the default one, a fabric, a preset, a
    variable. All else is the same. Every run is kept, as those of `bench run` are, and the pairs are judged as by
    `bench compare`; with --rounds 3 or more by their means, which is the surer way. In a program of your own, {model}
    stands for the model's name. The exit code is that of the first run that fails, which ends it.

    \b
    Examples:
      provision bench ab --a '--gputopology' --models vgg16,resnet50 -n 4
      provision bench ab --a '--preset taco --gdr --lightcc' --b '--preset taco'
      provision bench ab --a '--env NCCL_ALGO=Tree' -n 16 -- python3 bench.py {model}
    """
    if a.split() == b.split():
        raise UsageError("A and B are the same", remedy="Give one of them options: --a '--gputopology'")
    names = [name.strip() for name in models.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--models {models!r}: no model is named", remedy="Such as --models vgg16,resnet50")
    titles = [Setting(further=words).title for words in (a, b)]
    if titles[0] == titles[1]:
        titles = [f"{title}-{side}" if title else side for title, side in zip(titles, "ab", strict=True)]

    def job(words: str, title: str, model: str) -> Job:
        own = [word.replace(_MODEL, model) for word in command or ()]
        name = "-".join(filter(None, [model, title]))
        return benchmark_job(own, where, Setting(further=words), name, model, workload)

    pairs = [(job(a, titles[0], model), job(b, titles[1], model)) for model in dict.fromkeys(names)]
    bench = look(where)
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
    """Measure by turns until one fails; `done` gets what was measured of A and of B. Returns the failed one's code."""
    try:
        for pair in pairs:
            for one, records in zip(pair, done, strict=True):
                records.append(bench.measure(one, size))
                if records[-1].exit_code:
                    return records[-1].exit_code
    finally:
        stored = [record.id for records in done for record in records]
        if stored:
            say(f"kept: {', '.join(stored)}; they are listed by: provision bench list")
    return 0


def _tell(words: tuple[str, str], done: tuple[Sequence[Record], Sequence[Record]], code: int, *, as_json: bool) -> None:
    """Show the comparison of the two sides; `code` is that of the first run that failed, else 0.

    Raises:
        NoResult: there is nothing to compare.
    """
    from provision.benchmarks import compare
    from provision.report.bench_report import compare_document, compare_text
    from provision.report.redaction import Redactor

    runs = [[run for record in records for run in record.runs] for records in done]
    pairs, only_a, only_b = compare(*runs)
    if not pairs:
        raise NoResult("no model was measured on both sides", code, remedy="The output above says why.", output="")
    text = Redactor().text
    title_a, title_b = (text(shlex.join(shlex.split(side))) or "as `provision run` does" for side in words)
    if as_json:
        stored = {f"kept_{side}": [record.id for record in records] for side, records in zip("ab", done, strict=True)}
        print_json(compare_document(title_a, title_b, pairs, only_a, only_b) | stored)
    else:
        show(compare_text(title_a, title_b, pairs, only_a, only_b))
