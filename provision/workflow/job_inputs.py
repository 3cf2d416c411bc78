"""What a batch job takes along from the submitter's machine: logins that are kept here, keys, files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from provision.batch.code import fetch_request
from provision.errors import UsageError
from provision.jobs.code import read_files
from provision.jobs.engines.base import Secrets
from provision.workflow.stored_secrets import registry_credential, secrets_for, server_of_image, sync_credential

if TYPE_CHECKING:
    from provision.batch.environment import Environment
    from provision.batch.submission import Submission
    from provision.model.job import JobSpec

MOST_BYTES = 1 << 20
"""Of a file of --config-file."""


def collect_job_inputs(submission: Submission) -> tuple[JobSpec, Secrets]:
    """Return a job's spec and secrets with all inputs from this machine; another machine may start the job.

    Credentials for the code are removed from our environment, so that no program that we start has them.

    Raises:
        UsageError: a file or a setting cannot be read, or there is no stored login of that name.
    """
    spec = submission.spec
    sync = {name: value.reveal() for name, value in submission.sync.items()}
    if spec.sync is not None:
        source, sync = read_files(spec.sync, sync)
        sync = sync_credential(source, sync)
        fetch_request(source, sync)
        spec = replace(spec, sync=source)
    for name in submission.sync:
        os.environ.pop(name, None)  # else ssh and Ansible's programs would inherit what was taken from it
    env = {name: value.reveal() for name, value in submission.env.items()}
    return spec, Secrets(env, sync, _files(spec), _registry(spec, submission.pull_secrets))


def secrets_again(
    spec: JobSpec, given: Environment, environ: Mapping[str, str], pull_secrets: Sequence[str]
) -> Secrets:
    """Return the secrets of a job that was submitted before: what is given, else what this machine has.

    Raises:
        UsageError: a secret is missing, or is none of the job's.
    """
    other = sorted({*given.plain, *given.secret} - set(spec.secret_env))
    if other:
        raise UsageError(
            f"--env {other[0]}: {spec.name} has no secret variable of this name",
            remedy="A restart changes no other variable; to change one, submit the job again.",
        )
    env = {name: value.reveal() for name, value in given.secret.items()}
    missing = [name for name in spec.secret_env if name not in env and name not in environ]
    if missing:
        raise UsageError(
            f"{spec.name} needs {', '.join(missing)}, and secrets are removed when a job ends",
            remedy=f"Export {missing[0]} and restart with --env {missing[0]}, or use --env-file FILE.",
        )
    env |= {name: environ[name] for name in spec.secret_env if name not in env}
    sync = {name: value.reveal() for name, value in given.sync.items()}
    if spec.sync is not None:
        files = replace(spec.sync, options={**spec.sync.options, **given.sync_options})
        sync = sync_credential(spec.sync, read_files(files, sync)[1])
    return Secrets(env, sync, _files(spec), _registry(spec, pull_secrets))


def _files(spec: JobSpec) -> dict[str, str]:
    """Return the contents of --config-file, by their path in the container."""
    contents = {}
    for text in spec.config_files:
        source, _, target = text.partition(":")
        try:
            with Path(source).open("rb") as stream:
                content = stream.read(MOST_BYTES + 1)
        except OSError as error:
            raise UsageError(f"--config-file {source}: it cannot be read here: {error.strerror}") from error
        if len(content) > MOST_BYTES:
            raise UsageError(
                f"--config-file {source}: it is larger than 1 MiB",
                remedy="Bring it by --sync-mode, or keep it on a volume: provision data add.",
            )
        contents[target] = content.decode("utf-8", "surrogateescape")
    return contents


def _registry(spec: JobSpec, names: Sequence[str]) -> dict[str, str]:
    """Return the login for the registry of the job's images: the one that was named, else the one that is kept."""
    images = [image for image in (spec.image, spec.worker_image) if image]
    servers = {server_of_image(image) for image in images}
    for name in names:
        if not secrets_for("registry", name):
            raise UsageError(
                f"--image-pull-secret {name}: no login of a registry is kept under this name",
                remedy=f"provision secret add registry --server {name} --username NAME",
            )
        if name.lower() not in servers:
            raise UsageError(
                f"--image-pull-secret {name}: the image is of {' and '.join(sorted(servers))}, "
                "and a login goes to its own server alone",
                remedy="`provision secret list` has the names; a login that fits is used without this flag, too.",
            )
    logins = [login for login in (registry_credential(image) for image in dict.fromkeys(images)) if login]
    if len({login["server"] for login in logins}) > 1:
        raise UsageError(
            "--image and --worker-image are of two registries, each with a login that is kept here",
            remedy="Forget one of them (provision secret rm) and log the nodes in to it: `docker login`, as root.",
        )
    return logins[0] if logins else {}
