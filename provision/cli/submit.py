"""``provision submit``: submit a batch job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from provision.cli.common import show
from provision.cli.completion import complete_words
from provision.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provision.batch.submission import Submission, Words
    from provision.jobs.engines.base import JobEngine
    from provision.model.job import JobRecord

_AS_ROOT = "--no-container without --user: its processes run as root; use --user UID:GID for another account"


class _Raw(TyperCommand):
    """Command whose words are not parsed here: `provision.batch.flags` reads the flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Store the words, including ``--``."""
        ctx.params["words"] = None
        ctx.args = list(args)
        return []

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete the flags of jobs, which the parser does not know."""
        items = super().shell_complete(ctx, incomplete)
        if not incomplete.startswith("-"):
            return items
        from provision.batch.flags import FLAGS

        item = type(super().shell_complete(ctx, "--help")[0])
        names = {name for flag in FLAGS for name in flag.names if name.startswith(incomplete)}
        return [*items, *map(item, sorted(names - {one.value for one in items}))]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the text of the verb, and the flags by section."""
        from provision.batch.flags import flag_help

        formatter.write("Usage: provision submit [TYPE] [FLAGS] 'COMMAND' | -- COMMAND...\n\n")
        self.format_help_text(ctx, formatter)
        formatter.write("\n" + flag_help() + "\n")


def _complete_launcher(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the launchers with this prefix after their flag; the values of other flags are not completed."""
    from provision.launchers import launcher_names

    return complete_words(*launcher_names())(incomplete) if ctx.args[-1:] == ["--launcher"] else []


def submit(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TYPE] [FLAGS] 'COMMAND' | -- COMMAND...", autocompletion=_complete_launcher),
    ] = None,
) -> None:
    """Submit a batch job.

    It starts when every worker has its GPUs, and does not depend on this shell.

    TYPE is mpi (mpijob), pytorch (pytorchjob, py) or run; by default it depends
    on the command. The command is one word in quotes, for a shell in the container,
    or any number of words after --. Flags are those of `arena submit`, and more;
    a spec file (-f) has the same keys. -f also reads MPIJob and PyTorchJob manifests.
    --wait and --follow exit with the code of the rank that failed first.

    \b
    Examples:
      provision submit pytorch --name=mnist --gpus=1 --workers=3 --image=IMAGE \\
        --data=training-data:/data "python3 /data/train.py --epochs 10"
      provision submit mpi --gputopology=true --name=vgg --gpus=1 --workers=4 \\
        --image=IMAGE "mpirun -np 4 python /examples/train.py"
      provision submit mpi --name=vgg --gpus=8 --workers=2 --image=IMAGE \\
        --np auto -- python3 train.py
      provision submit -f job.yaml --name=again --follow
      provision submit -f job.yaml --dry-run -o yaml > again.yaml
      provision submit -f again.yaml
    """
    from provision.batch.submission import read_words, submission

    assert words is None  # noqa: S101 # nosec B101 # _Raw left them in ctx.args
    if {"--help", "-h"} & set(_own(ctx.args)):
        show(ctx.get_help())
        return
    typed = read_words(ctx.args)
    document = _document(typed)
    request = submission(typed, _here(typed), document)
    _refuse(typed)
    _submit(typed, request)


submit.typer_settings = {  # type: ignore[attr-defined]
    "cls": _Raw,
    "context_settings": {"ignore_unknown_options": True, "allow_extra_args": True},
}


def _own(words: list[str]) -> list[str]:
    return words[: words.index("--")] if "--" in words else words


def _refuse(typed: Words) -> None:
    if typed.true("follow") and (typed.true("json") or typed.text("output")):
        raise UsageError("--follow and --json exclude each other", remedy="Use --wait with --json.")
    if typed.text("output") == "wide":
        raise UsageError("-o wide is for tables", remedy="Use json, yaml or name.")


def _submit(typed: Words, request: Submission) -> None:
    from provision.batch.data import volumes_for
    from provision.cli.common import place_words
    from provision.cli.job_options import cluster_and_engine
    from provision.cli.levels import info, patience, warn
    from provision.jobs.engines.base import Capability, require, require_for
    from provision.report.job_submit import closing_lines
    from provision.workflow.job_inputs import collect_job_inputs
    from provision.workflow.job_names import add_job_name

    spec, secrets = collect_job_inputs(request)
    cluster, engine = cluster_and_engine(
        _inventory(typed), typed.text("lab") or None, ask_become_pass=typed.true("ask_become_pass"), through_agent=True
    )
    for note in request.notes:
        warn(note)
    if spec.no_container and not spec.user and not cluster.slurm_login:
        warn(_AS_ROOT)
    require_for(engine, spec)
    if typed.true("follow"):
        require(engine, Capability.FOLLOW, "provision submit --follow")
    volumes_for(spec, cluster)
    if typed.true("dry_run"):
        _dry_run(typed, request, engine)
        return
    with patience(f"submitting {request.spec.name}"):
        job = engine.submit(spec, secrets, info)
    add_job_name(cluster.inventory, job.spec.name)
    for line in closing_lines(job, place_words(_inventory(typed), typed.text("lab") or None)):
        info(line)
    if not typed.true("follow") and not typed.true("wait"):
        _show(typed, job, engine)
        return
    raise typer.Exit(_to_the_end(typed, job, engine))


def _to_the_end(typed: Words, job: JobRecord, engine: JobEngine) -> int:
    from provision.cli.following import follow, wait_to_the_end
    from provision.workflow.job_watch import exit_code

    job = follow(engine, job) if typed.true("follow") else wait_to_the_end(engine, job.spec.name)
    if typed.true("wait") and not typed.true("follow"):
        _show(typed, job, engine)
    return exit_code(job)


def _dry_run(typed: Words, request: Submission, engine: JobEngine) -> None:
    from provision.cli.job_options import present
    from provision.cli.levels import patience, warn
    from provision.report.job_submit import dry_run_document, dry_run_text

    with patience("probing the nodes"):
        plan = engine.dry_run(request.spec)
    for note in plan.notes:
        warn(note)
    form = typed.text("output")
    if form == "name":
        show(request.spec.name)
        return
    present(
        form,
        as_json=typed.true("json"),
        document=lambda: dry_run_document(request, plan),
        text=lambda: dry_run_text(plan),
    )


def _show(typed: Words, job: JobRecord, engine: JobEngine) -> None:
    """Print the record where a form was asked for; arena prints nothing on stdout but what it made."""
    from provision.cli.job_options import now, present
    from provision.report.job_document import job_document

    form = typed.text("output")
    if form == "name":
        show(job.spec.name)
    elif form or typed.true("json"):
        present(
            form,
            as_json=typed.true("json"),
            document=lambda: job_document(job, now(), engine.name),
            text=lambda: job.spec.name,
        )


def _inventory(typed: Words) -> str | None:
    return typed.text("inventory") or os.environ.get("PROVISION_INVENTORY") or None


def _here(typed: Words) -> Any:
    from provision.batch.submission import Here
    from provision.cli.job_options import is_secret, private_text

    files = [(name, private_text(Path(name))) for name in typed.values.get("env_file", ())]
    return Here(os.getcwd(), os.environ, files, is_secret)  # noqa: PTH109 - the path of the shell


def _document(typed: Words) -> Mapping[str, Any] | None:
    from provision.cli.export import read_file

    name = typed.text("file")
    return read_file(name) if name else None
