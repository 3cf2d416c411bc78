"""``provision bench run`` and ``bench scale``: run benchmarks as jobs of ``provision run`` and store their results."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.bench_job import Job, Setting, launched, run_words
from provision.cli.common import (
    InventoryOption,
    JsonOption,
    LabOption,
    LimitOption,
    cluster_from,
    note,
    print_json,
    say,
    show,
)
from provision.cli.option_groups import with_option_groups
from provision.errors import ProvisionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provision.benchmarks import Record
    from provision.facts import NodeFacts
    from provision.jobs import Plan
    from provision.launchers import HostEntry
    from provision.report.json_documents.benchmarks import PlannedCommands, StoredRuns

CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- CMD...]", help="Your own program with the same output format."),
]
NameOption = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Name of the stored result. [model and options]")
]
ModelOption = Annotated[str, typer.Option("--model", help="A model of torchvision, or convnet or mlp.")]
BatchOption = Annotated[int, typer.Option("--batch-size", min=1, help="Images per step and GPU.")]
ItersOption = Annotated[int, typer.Option("--num-iters", min=1, help="Measured iterations.")]
BackendOption = Annotated[str, typer.Option("--backend", help="auto, horovod or ddp.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cuda or cpu.")]
GdrOption = Annotated[bool, typer.Option("--gdr", help="GPUDirect RDMA as in TACO Train's guide.")]
LightccOption = Annotated[bool, typer.Option("--lightcc", help="LightCC as in TACO Train's guide.")]
PresetOption = Annotated[str, typer.Option("--preset", metavar="NAME", help="The preset of `provision run`.")]
FabricOption = Annotated[str, typer.Option("--fabric", metavar="NAME", help="The fabric of `provision run`.")]
EnvOption = Annotated[
    list[str] | None, typer.Option("--env", "-e", metavar="K[=V]", help="Environment variable of all ranks.")
]
WithOption = Annotated[
    str, typer.Option("--with", metavar="WORDS", help="Further options of `provision run`, as one word.")
]
AllowMissingOption = Annotated[bool, typer.Option("--allow-missing", help="Exclude nodes that cannot run ranks.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print the `provision run` commands without running them.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Answer yes to all questions.")]


@dataclass(frozen=True, kw_only=True)
class WhereOptions:
    """Nodes of a benchmark."""

    inventory: InventoryOption = None
    lab: LabOption = None
    limit: LimitOption = None
    allow_missing: AllowMissingOption = False
    yes: YesOption = False

    def words(self) -> list[str]:
        """Return the same options for `provision run`."""
        inventory = self.inventory if self.lab is None else None
        chosen = [("--lab", self.lab), ("--inventory", inventory), ("--limit", self.limit)]
        words = [word for option, value in chosen if value is not None for word in (option, value)]
        return [*words, *(["--allow-missing"] if self.allow_missing else []), *(["--yes"] if self.yes else [])]


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """Computation of each rank."""

    batch_size: BatchOption = 64
    num_iters: ItersOption = 10
    backend: BackendOption = "auto"
    device: DeviceOption = "auto"
    env: EnvOption = None


@dataclass(frozen=True, kw_only=True)
class SettingOptions:
    """The measured setting."""

    preset: PresetOption = ""
    fabric: FabricOption = ""
    lightcc: LightccOption = False
    gdr: GdrOption = False
    further: WithOption = ""

    def setting(self) -> Setting:
        """Return it as a value."""
        return Setting(self.preset, self.fabric, self.gdr, self.lightcc, self.further)


@with_option_groups
def run(
    command: CommandArgument = None,
    *,
    where: WhereOptions,
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", metavar="NP", min=1, help="Number of ranks. [all slots]")
    ] = None,
    name: NameOption = None,
    model: ModelOption = "resnet50",
    workload: WorkloadOptions,
    setting: SettingOptions,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a synthetic training benchmark.

    Runs across the nodes' containers and stores the result.

    It is a job of `provision run`, which copies our program (one file) into the containers; the image needs torch, and
    torchvision for models other than convnet and mlp. The output is shown live on stderr. The result is stored on this
    machine with nodes, GPUs, driver, fabric, image, command and environment. The exit code is that of the job.

    \b
    Examples:
      provision bench run --model vgg16 --batch-size 64
      provision bench run --model vgg16 --batch-size 64 --dry-run
      provision bench run --lab demo -n 2 --model mlp --device cpu
      provision bench run --lightcc --gdr --name lightcc-gdr
      provision bench run -- python3 /mnt/my_benchmark.py --model=vgg16
    """
    job = benchmark_job(command, where, setting.setting(), name, model, workload)
    _measure(job, where, [ranks], dry_run=dry_run, as_json=as_json)


@with_option_groups
def scale(
    command: CommandArgument = None,
    *,
    where: WhereOptions,
    sizes: Annotated[
        str | None,
        typer.Option("--sizes", metavar="N,N,...", help="Numbers of GPUs. [1, one node, 2, 4, ... nodes, all]"),
    ] = None,
    name: NameOption = None,
    model: ModelOption = "resnet50",
    workload: WorkloadOptions,
    setting: SettingOptions,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure scaling from one GPU to all nodes.

    Runs the benchmark on one GPU, one node, two nodes and so on.

    With two nodes of eight GPUs the sizes are 1, 8 and 16. The efficiency is T(n) / (n T(1)), where T is the number of
    images per second of all GPUs. Each size is a separate benchmark, stored under the same name. The first one that
    fails ends the command, and earlier results remain stored.

    \b
    Examples:
      provision bench scale --model resnet50 --batch-size 256
      provision bench scale --sizes 1,8,16 --lightcc --name lightcc
      provision bench scale --lab demo --model mlp --device cpu --dry-run
    """
    job = benchmark_job(command, where, setting.setting(), name, model, workload)
    numbers = _numbers(sizes) if sizes is not None else None
    _measure(job, where, numbers, dry_run=dry_run, as_json=as_json)


def _numbers(text: str) -> list[int | None]:
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"--sizes {text}: not a list of numbers of GPUs", remedy="For example: --sizes 1,8,16")
    return [int(word) for word in dict.fromkeys(word.strip() for word in words)]


def benchmark_job(
    command: Sequence[str] | None,
    where: WhereOptions,
    setting: Setting,
    name: str | None,
    model: str,
    workload: WorkloadOptions,
) -> Job:
    """Return the job of a benchmark.

    Raises:
        UsageError: Its name is not valid for a result.
    """
    from provision.workflow.bench_runs import PROGRAM

    ours = ["python3", PROGRAM, "--model", model, "--batch-size", str(workload.batch_size)]
    ours += ["--num-iters", str(workload.num_iters), "--backend", workload.backend, "--device", workload.device]
    ours += ["--about"]
    options = run_words(setting)
    title = name or "-".join(filter(None, ["job" if command else model, setting.title]))
    if not title.isprintable() or "/" in title or title.startswith("-"):
        raise UsageError(f"--name {title}: not a valid name of a result", remedy="Use letters, digits and dashes.")
    environment = tuple(workload.env or ())
    return Job(title, tuple(where.words()), tuple(options), tuple(command or ours), environment, ours=not command)


def _measure(
    job: Job,
    where: WhereOptions,
    sizes: Sequence[int | None] | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    bench = probe_for_bench(where)
    wanted = bench.counted(bench.default_sizes() if sizes is None else sizes)
    if dry_run:
        bench.show_commands([(job, size) for size in wanted], as_json=as_json)
        return
    done: list[Record] = []
    try:
        for size in wanted:
            done.append(bench.measure(job, size))
            if done[-1].exit_code:
                break
    except ProvisionError:
        report_stored(job.name, done)
        raise
    _tell(job, done, as_json=as_json)
    raise typer.Exit(done[-1].exit_code)


@dataclass(frozen=True)
class Bench:
    """Nodes on which benchmarks run, with their facts."""

    entries: Sequence[HostEntry]
    facts: Mapping[str, NodeFacts | ProvisionError]
    inventory: str

    def default_sizes(self) -> list[int | None]:
        """Return the numbers of ranks that show scaling."""
        from provision.workflow.bench_runs import default_sizes

        return list(default_sizes(self.entries)) or [None]

    def counted(self, sizes: Sequence[int | None]) -> list[int | None]:
        """Return the number of ranks; without available nodes the given number, because `run` reports the reason."""
        from provision.jobs.request import rank_count

        return [rank_count(self.entries, size) for size in sizes] if self.entries else list(sizes)

    def show_commands(self, planned: Sequence[tuple[Job, int | None]], *, as_json: bool) -> None:
        """Print the commands."""
        commands = [shlex.join(["provision", *job.words(size, self.entries)]) for job, size in planned]
        document: PlannedCommands = {"commands": commands}
        print_json(document) if as_json else show("\n".join(commands))

    def measure(self, job: Job, size: int | None) -> Record:
        """Run a benchmark once and store its result."""
        ranks = f": {size} rank{'s' * (size != 1)}" if size and not job.counts else ""
        note(f"bench {job.name}{ranks}")
        return _one(job, size, self.entries, self.facts, self.inventory)


def probe_for_bench(where: WhereOptions) -> Bench:
    """Probe the nodes for benchmarks."""
    from provision import workflow

    full = workflow.with_defaults(cluster_from(where.inventory, where.lab))
    facts = workflow.probe(workflow.chosen(full, where.limit), names=[node.name for node in full.nodes])
    entries, _ = workflow.host_entries(full, facts)
    return Bench(entries, facts, str(full.inventory))


def _one(
    job: Job,
    size: int | None,
    entries: Sequence[HostEntry],
    facts: Mapping[str, NodeFacts | ProvisionError],
    inventory: str,
) -> Record:
    from provision.benchmarks import Record
    from provision.report.redaction import Redactor
    from provision.workflow import bench_runs
    from provision.workflow.benchmark_files import new_id

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
    code, output = launched(job.words(size, entries), plans)
    assignments = plans[0].assignments if plans else ()
    record = replace(record, nodes=bench_runs.node_infos(assignments, facts))
    return bench_runs.finish(record, bench_runs.Ended(code, output, time.monotonic() - begin))


def _tell(job: Job, done: Sequence[Record], *, as_json: bool) -> None:
    from provision.report.bench_report import runs_document, runs_text

    runs = [run for record in done for run in record.runs]
    if as_json:
        document: StoredRuns = {"name": job.name, "kept": [record.id for record in done], **runs_document(runs)}
        print_json(document)
        return
    show(runs_text(runs))
    report_stored(job.name, done)


def report_stored(name: str, done: Sequence[Record]) -> None:
    """Print the ids of stored results and the command that shows them."""
    if done:
        say(f"stored: {', '.join(record.id for record in done)}; to show it: provision bench table {shlex.quote(name)}")
