"""``provision restart``: start a batch job again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, YesOption, print_json, show
from provision.cli.job_options import JobArgument, engine_of, now, private_text
from provision.cli.job_owner import ask_about_owner
from provision.cli.levels import info, patience, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from provision.jobs.engines.base import Secrets
    from provision.model.job import JobSpec


def restart(
    name: JobArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow its output until it ends; exit with its code.")
    ] = False,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env", "-e", metavar="K[=V]", help="Secret variable of your job; K alone uses the exported value."
        ),
    ] = None,
    env_file: Annotated[
        list[Path] | None, typer.Option("--env-file", metavar="FILE", help="File with secret variables, as K=V lines.")
    ] = None,
    pull_secret: Annotated[
        list[str] | None,
        typer.Option("--image-pull-secret", metavar="HOST", help="Credentials of `provision secret` for the image."),
    ] = None,
    yes: YesOption = False,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a batch job again.

    It becomes the job's next attempt. A running job is stopped first, a held job
    starts. A job of another owner is restarted after a confirmation; without a terminal
    only with --yes. The exit code is 7 when a node has not confirmed the end of the
    running attempt: then restart the job again.

    The secrets of a job are removed when it ends. To restart your own job, its credentials are read from `provision
    secret`, its --config-file from their paths, and its secret variables from --env, --env-file or the environment of
    this shell, as with submit. Only its owner can restart a finished job with secrets.

    The logs of earlier attempts remain: provision logs NAME --attempt N.

    \b
    Examples:
      provision restart mnist
      provision restart mnist --follow
      provision restart mnist --env API_TOKEN
    """
    from provision.cli.following import follow as follow_to_the_end
    from provision.report.job_document import job_document
    from provision.workflow.job_watch import exit_code

    supply = _secret_source(env or (), env_file or (), pull_secret or ())
    engine = engine_of(inventory, lab)
    ask_about_owner(engine, name, "Restart", yes=yes)
    with patience(f"restarting {name}"):
        job = engine.restart(name, info, supply=supply, renew=bool(env or env_file or pull_secret))
    info(f"{name} is {job.status}, attempt {job.attempt}" + (f": {job.reason}" if job.reason else ""))
    if follow:
        raise typer.Exit(exit_code(follow_to_the_end(engine, job)))
    if as_json:
        print_json(job_document(job, now(), engine.name))
    else:
        show(f"{name} {job.status}")


def _secret_source(
    env: Sequence[str], env_file: Sequence[Path], pull_secret: Sequence[str]
) -> Callable[[JobSpec], Secrets]:
    """Return the function that reads the secrets of a job again, with the variables of the options."""
    from provision.batch.environment import classify, parse_arguments, parse_file
    from provision.workflow.job_inputs import secrets_again

    texts = [(str(file), private_text(file)) for file in env_file]
    given = [variable for file, text in texts for variable in parse_file(text, file, os.environ)]
    given += parse_arguments(env, os.environ)
    variables = classify(given, lambda _name, _value: True)
    for remark in variables.notes:
        warn(remark)

    return lambda spec: secrets_again(spec, variables, os.environ, pull_secret)
