"""``provision attach``: run a command or shell in an instance of a batch job."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import typer

from provision.cli.common import LabOption
from provision.cli.job_options import (
    JobArgument,
    LongInventoryOption,
    TypeOption,
    check_kind,
    engine_of,
    insist_on_kind,
    require,
)
from provision.cli.levels import patience
from provision.errors import NotFound


def attach(
    name: JobArgument,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- CMD...]", help="Command to run. [bash, or sh]")
    ] = None,
    instance: Annotated[
        str, typer.Option("--instance", "-i", metavar="INSTANCE", help="Instance to use. [the first]")
    ] = "",
    inventory: LongInventoryOption = None,
    lab: LabOption = None,
    kind: TypeOption = "",
    container: Annotated[str, typer.Option("--container", "-c", hidden=True)] = "",
) -> None:
    """Run a command or shell in a job's instance.

    Works as `docker exec` does; without a command it starts a shell.

    The exit code is the command's.

    \b
    Examples:
      provision attach mnist
      provision attach mnist -i mnist-worker-0 -- nvidia-smi
      provision exec mnist -- env
    """
    from provision.report.job_words import leader

    del container
    check_kind(kind)
    engine = engine_of(inventory, lab)
    require(engine, "ATTACH", "provision attach")
    with patience("querying the nodes"):
        try:
            job = engine.get(name)
        except NotFound as error:
            remedy = f"{error.remedy}. To run a command on the nodes: provision exec -- {name}"
            raise NotFound(error.message, remedy=remedy) from error
    insist_on_kind(job, kind)
    if job.status.over:
        raise NotFound(
            f"{name} is {job.status}: no process of it is running",
            remedy=f"Show its output: provision logs {name}; start it again: provision restart {name}",
        )
    known = [assignment.instance for assignment in job.assignments]
    first = leader(job)
    wanted = instance or (first.instance if first else "")
    wanted = f"{name}-{wanted}" if f"{name}-{wanted}" in known else wanted
    if wanted not in known:
        raise NotFound(
            f"{name} has no instance {wanted}" if wanted else f"{name} is {job.status} and has no instance yet",
            remedy=f"`provision get {name}` lists its instances.",
        )
    shell = ["sh", "-c", "command -v bash >/dev/null && exec bash || exec sh"]
    argv = engine.exec_argv(name, wanted, command or shell, terminal=sys.stdin.isatty() and sys.stdout.isatty())
    sys.stdout.flush()
    raise typer.Exit(subprocess.run(argv, check=False).returncode & 0xFF)
