"""``provision bench run`` and ``bench scale``: benchmarks as jobs of ``provision run``, and their results kept."""

from __future__ import annotations

import contextlib
import io
import secrets
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import (
    InventoryOption,
    JsonOption,
    LabOption,
    LimitOption,
    cluster_from,
    print_json,
    say,
    show,
)
from provision.errors import ProvisionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import ReadableBuffer as Buffer

    from provision.benchmarks import Record
    from provision.facts import NodeFacts
    from provision.hostfiles import HostEntry
    from provision.jobs import Plan

__all__ = ["Setting", "run", "run_words", "scale"]

_LOW_PORT, _PORTS = 20_000, 10_000

CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- CMD...]", help="A program of yours instead of ours; it must print the same form."),
]
NameOption = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Keep the result under this name. [model and options]")
]
ModelOption = Annotated[str, typer.Option("--model", help="A name of torchvision's; convnet and mlp need none.")]
BatchOption = Annotated[int, typer.Option("--batch-size", min=1, help="Images per step and GPU.")]
ItersOption = Annotated[int, typer.Option("--num-iters", min=1, help="Measured iterations.")]
BackendOption = Annotated[str, typer.Option("--backend", help="auto, horovod or ddp.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cuda or cpu.")]
GdrOption = Annotated[bool, typer.Option("--gdr", help="GPUDirect RDMA as in TACO Train's guide.")]
LightccOption = Annotated[bool, typer.Option("--lightcc", help="LightCC as in TACO Train's guide.")]
PresetOption = Annotated[str, typer.Option("--preset", metavar="NAME", help="The preset of `provision run`.")]
FabricOption = Annotated[str, typer.Option("--fabric", metavar="NAME", help="The fabric of `provision run`.")]
EnvOption = Annotated[
    list[str] | None, typer.Option("--env", "-e", metavar="K[=V]", help="Give every rank this variable.")
]
WithOption = Annotated[
    str, typer.Option("--with", metavar="WORDS", help="Further options of `provision run`, in one word.")
]
AllowMissingOption = Annotated[
    bool, typer.Option("--allow-missing", help="Go on without nodes that cannot take ranks.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the `provision run` commands, start nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Answer yes to whatever would be asked.")]


@dataclass(frozen=True)
class Setting:
    """How a benchmark's job differs from a plain one."""

    preset: str = ""
    fabric: str = ""
    gdr: bool = False
    lightcc: bool = False
    further: str = ""

    @property
    def title(self) -> str:
        """Return what tells its results from others': ``lightcc-gdr``; of further options their names alone.

        What stands behind an option may be a password, and the title is shown and kept.
        """
        words = [self.preset, self.fabric, "lightcc" if self.lightcc else "", "gdr" if self.gdr else ""]
        options = (word for word in shlex.split(self.further) if word.startswith("-"))
        return "-".join(filter(None, [*words, *(word.lstrip("-").partition("=")[0] for word in options)]))


def run_words(setting: Setting) -> list[str]:
    """Return the options of ``provision run`` that make a job so; the one place that knows them.

    Raises:
        UsageError: the further words cannot be split.
    """
    try:
        further = shlex.split(setting.further)
    except ValueError as error:
        raise UsageError(f"--with {setting.further}: {error}", remedy="Quote as a shell wants it.") from None
    preset = setting.preset or ("taco" if setting.gdr or setting.lightcc else "")
    return [
        *(["--preset", preset] if preset else []),
        *(["--fabric", setting.fabric] if setting.fabric else []),
        *(["--gdr"] if setting.gdr else []),
        *(["--lightcc"] if setting.lightcc else []),
        *further,
    ]


@dataclass(frozen=True)
class _Job:
    """What all sizes have in common."""

    name: str
    where: tuple[str, ...]
    """Words that choose the nodes."""
    options: tuple[str, ...]
    command: tuple[str, ...]
    environment: tuple[str, ...]
    ours: bool
    """Our own program runs, and has to be brought into the containers."""

    @property
    def counts(self) -> bool:
        """Whether the options say themselves how many ranks there are."""
        return any(word.partition("=")[0] in {"--gpus", "-g", "--workers"} for word in self.options)

    @property
    def as_in_the_guide(self) -> bool:
        """Whether the command line is to be that of TACO Train's guide, to which nothing can be added."""
        return "--preset=taco" in self.options or ("--preset", "taco") in pairwise(self.options)

    def words(self, ranks: int | None, entries: Sequence[HostEntry]) -> list[str]:
        """Return the words of ``provision run``."""
        from provision.workflow.bench_runs import program_folder

        number = ["-n", str(ranks)] if ranks and not self.counts else []
        command, own = self.command, []
        if self.ours:
            folder = str(program_folder())
            own = ["--sync", folder]
            own += _meeting(entries) if self.as_in_the_guide else ["--launcher", "python"]
            command = (*command[:1], f"{folder}/{command[1]}", *command[2:])
        environment = [word for variable in self.environment for word in ("--env", variable)]
        return ["run", *self.where, *number, *own, *self.options, *environment, "--", *command]


def _meeting(entries: Sequence[HostEntry]) -> list[str]:
    """Say where the ranks meet: the first one's node, for its slots are filled first."""
    first = next((entry for entry in entries if entry.slots), None)
    port = _LOW_PORT + secrets.randbelow(_PORTS)
    return ["--env", f"MASTER_ADDR={first.address}", "--env", f"MASTER_PORT={port}"] if first else []


def run(
    command: CommandArgument = None,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    limit: LimitOption = None,
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", metavar="NP", min=1, help="Ranks; all slots without it.")
    ] = None,
    name: NameOption = None,
    model: ModelOption = "resnet50",
    batch_size: BatchOption = 64,
    num_iters: ItersOption = 10,
    backend: BackendOption = "auto",
    device: DeviceOption = "auto",
    preset: PresetOption = "",
    fabric: FabricOption = "",
    lightcc: LightccOption = False,
    gdr: GdrOption = False,
    env: EnvOption = None,
    further: WithOption = "",
    allow_missing: AllowMissingOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a synthetic training benchmark across the nodes' containers, and keep its result.

    It is a job of `provision run`, which brings our program (one file) along; the image needs torch, and torchvision
    for models other than convnet and mlp. The output is shown live on stderr. The result is kept on this machine with
    what it ran on: nodes, GPUs, driver, fabric, image, command and environment. The exit code is the job's own.

    \b
    Examples:
      provision bench run --model vgg16 --batch-size 64
      provision bench run --lab demo -n 2 --model mlp --device cpu
      provision bench run --lightcc --gdr --name lightcc-gdr
      provision bench run -- python3 /mnt/pytorch_synthetic_benchmark.py --model=vgg16
    """
    setting = Setting(preset, fabric, gdr, lightcc, further)
    where = _where(inventory, lab, limit, allow_missing=allow_missing, yes=yes)
    job = _job(command, where, setting, name, env or (), (model, batch_size, num_iters, backend, device))
    _measure(job, (inventory, lab, limit), [ranks], dry_run=dry_run, as_json=as_json)


def scale(
    command: CommandArgument = None,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    limit: LimitOption = None,
    sizes: Annotated[
        str | None,
        typer.Option("--sizes", metavar="N,N,...", help="Numbers of GPUs. [1, one node, 2, 4, ... nodes, all]"),
    ] = None,
    name: NameOption = None,
    model: ModelOption = "resnet50",
    batch_size: BatchOption = 64,
    num_iters: ItersOption = 10,
    backend: BackendOption = "auto",
    device: DeviceOption = "auto",
    preset: PresetOption = "",
    fabric: FabricOption = "",
    lightcc: LightccOption = False,
    gdr: GdrOption = False,
    env: EnvOption = None,
    further: WithOption = "",
    allow_missing: AllowMissingOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run the benchmark on one GPU, one node, two nodes and so on, and show how it scales.

    On two nodes of eight GPUs that is 1, 8 and 16. The efficiency is T(n) / (n T(1)), T being the images per second of
    all GPUs together. Each size is a benchmark of its own, kept under the same name; the first that fails ends it,
    and what was measured before stands.

    \b
    Examples:
      provision bench scale --model resnet50 --batch-size 256
      provision bench scale --sizes 1,8,16 --lightcc --name lightcc
      provision bench scale --lab demo --model mlp --device cpu --dry-run
    """
    setting = Setting(preset, fabric, gdr, lightcc, further)
    where = _where(inventory, lab, limit, allow_missing=allow_missing, yes=yes)
    job = _job(command, where, setting, name, env or (), (model, batch_size, num_iters, backend, device))
    _measure(
        job, (inventory, lab, limit), _numbers(sizes) if sizes is not None else None, dry_run=dry_run, as_json=as_json
    )


def _numbers(text: str) -> list[int | None]:
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"--sizes {text}: these are no numbers of GPUs", remedy="Write them so: --sizes 1,8,16")
    return [int(word) for word in dict.fromkeys(word.strip() for word in words)]


def _where(inventory: str | None, lab: str | None, limit: str | None, *, allow_missing: bool, yes: bool) -> list[str]:
    chosen = [("--lab", lab), ("--inventory", inventory if lab is None else None), ("--limit", limit)]
    words = [word for option, value in chosen if value is not None for word in (option, value)]
    return [*words, *(["--allow-missing"] if allow_missing else []), *(["--yes"] if yes else [])]


def _job(
    command: Sequence[str] | None,
    where: Sequence[str],
    setting: Setting,
    name: str | None,
    env: Sequence[str],
    about: tuple[str, int, int, str, str],
) -> _Job:
    from provision.workflow.bench_runs import PROGRAM

    model, batch, iterations, backend, device = about
    ours = ["python3", PROGRAM, "--model", model, "--batch-size", str(batch), "--num-iters", str(iterations)]
    ours += ["--backend", backend, "--device", device, "--about"]
    options = run_words(setting)
    title = name or "-".join(filter(None, ["job" if command else model, setting.title]))
    if not title.isprintable() or "/" in title or title.startswith("-"):
        raise UsageError(f"--name {title}: this is no name for a result", remedy="Use letters, digits and dashes.")
    return _Job(title, tuple(where), tuple(options), tuple(command or ours), tuple(env), ours=not command)


def _measure(
    job: _Job,
    chosen: tuple[str | None, str | None, str | None],
    sizes: Sequence[int | None] | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    from provision import workflow
    from provision.jobs.request import rank_count
    from provision.workflow import bench_runs

    inventory, lab, limit = chosen
    full = workflow.with_defaults(cluster_from(inventory, lab))
    facts = workflow.probe(workflow.chosen(full, limit), names=[node.name for node in full.nodes])
    entries, _ = workflow.host_entries(full, facts)
    wanted: list[int | None] = list(bench_runs.default_sizes(entries) if sizes is None else sizes) or [None]
    if entries:  # else `run` says why there are none
        wanted = [rank_count(entries, size) for size in wanted]
    if dry_run:
        commands = [shlex.join(["provision", *job.words(size, entries)]) for size in wanted]
        print_json({"commands": commands}) if as_json else show("\n".join(commands))
        return
    done: list[Record] = []
    try:
        for size in wanted:
            ranks = f": {size} rank{'s' * (size != 1)}" if size and not job.counts else ""
            say(f"bench {job.name}{ranks}")
            done.append(_one(job, size, entries, facts, str(full.inventory)))
            if done[-1].exit_code:
                break
    except ProvisionError:
        _tell_kept(job, done)
        raise
    _tell(job, done, as_json=as_json)
    raise typer.Exit(done[-1].exit_code)


def _one(
    job: _Job,
    size: int | None,
    entries: Sequence[HostEntry],
    facts: Mapping[str, NodeFacts | ProvisionError],
    inventory: str,
) -> Record:
    from provision.benchmarks import Record
    from provision.report.redaction import Redactor
    from provision.workflow import bench_runs
    from provision.workflow.kept_benchmarks import new_id

    without_secrets = Redactor().text
    record = Record(
        id=new_id(),
        name=job.name,
        started=bench_runs.now(),
        inventory=inventory,
        command=without_secrets(shlex.join(job.command)),
        options=without_secrets(shlex.join(job.options)),
        environment=bench_runs.visible_environment(job.environment),
    )
    begin = time.monotonic()
    plans: list[Plan] = []
    code, output = _launched(job.words(size, entries), plans)
    seats = plans[0].seats if plans else ()
    record = replace(record, nodes=bench_runs.node_infos(seats, facts))
    return bench_runs.finish(record, bench_runs.Ended(code, output, time.monotonic() - begin))


def _tell(job: _Job, done: Sequence[Record], *, as_json: bool) -> None:
    from provision.report.bench_report import runs_document, runs_text

    runs = [run for record in done for run in record.runs]
    if as_json:
        print_json({"name": job.name, "kept": [record.id for record in done], **runs_document(runs)})
        return
    show(runs_text(runs))
    _tell_kept(job, done)


def _tell_kept(job: _Job, done: Sequence[Record]) -> None:
    if done:
        say(f"kept: {', '.join(record.id for record in done)}; again: provision bench table {shlex.quote(job.name)}")


def _launched(words: Sequence[str], plans: list[Plan]) -> tuple[int, str]:
    """Do what `provision` does with these words, in this process; return its exit code and what the job printed.

    The job's output goes to stderr at once, as stdout is for the result. The plan by which it ran is put into `plans`.
    """
    from provision.cli.main import build_app

    command = typer.main.get_command(build_app(words[0]))
    shown = _Shown()
    stream = io.TextIOWrapper(shown, encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(stream):
        code = command.main(args=list(words), prog_name="provision", standalone_mode=False, obj=plans)
    stream.flush()
    return (code if isinstance(code, int) else 0), shown.getvalue().decode(errors="replace")


class _Shown(io.BytesIO):
    """Keeps what is written to it, and shows it on stderr."""

    def write(self, data: Buffer, /) -> int:
        """Take the next piece."""
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()
        return super().write(data)
