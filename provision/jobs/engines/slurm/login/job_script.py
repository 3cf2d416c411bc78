"""The batch script of a job on a login node: that of `provision export --to slurm`, which records its start and end."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from provision.batch.export.slurm import slurm_script
from provision.batch.export.workload import ExportOptions, fetches_code
from provision.errors import UsageError
from provision.model.job import JobSpec, Kind
from provision.model.job_requests import Secrets
from provision.model.reason import reason
from provision.report.reasons import error_of, message

DEFAULT_FOLDER = JobSpec("x", Kind.RUN, ()).working_dir
"""The working directory of jobs that name none; ordinary users cannot use it without a container."""
CONTAINERS = ("none", "pyxis", "apptainer")
_DONE_HERE = frozenset({"--priority", "--depends"})
"""Options without a counterpart in a script, which the submission sets."""
_SILENT = frozenset({"export.secret_environment", "export.stored_environment", "export.paths_of_nodes"})
"""Notes for users who submit a script themselves."""
_RECORDS = """\
ended() {
    code=$?
    rm -f "$folder/secrets"
    printf '%s %s\\n' "$code" "$(date +%s)" >"$folder/ended.new" && mv -f "$folder/ended.new" "$folder/ended"
}
trap ended EXIT
trap 'exit 143' TERM
{ date +%s; scontrol show hostnames "$SLURM_JOB_NODELIST"; } >"$folder/started.new"
mv -f "$folder/started.new" "$folder/started"
if [ -e "$folder/secrets" ]; then . "$folder/secrets"; fi"""


@dataclass(frozen=True)
class LoginSite:
    """The settings of the inventory for jobs on a login node."""

    containers: str
    """One of `CONTAINERS`."""
    data_paths: Mapping[str, str]
    """Volume -> its path on the nodes."""
    read_only: frozenset[str]
    """Volumes that are mounted read-only."""


def job_script(spec: JobSpec, site: LoginSite, home: str, attempt: int) -> tuple[str, list[str]]:
    """Return the batch script of an attempt, and warnings.

    Raises:
        UsageError: the job has an option that this mode does not have.
    """
    _check(spec, site)
    if spec.working_dir == DEFAULT_FOLDER and (spec.no_container or site.containers != "pyxis"):
        spec = replace(spec, working_dir=home)
    runtime = "pyxis" if spec.no_container else site.containers
    options = ExportOptions(runtime=runtime, data_paths=site.data_paths, read_only=site.read_only, submitted=True)
    body, notes = slurm_script(spec, options)
    lacking = [note for note in notes if note.code == "export.no_counterpart"]
    refused = [note for note in lacking if note.params["option"] not in _DONE_HERE]
    if refused:
        raise error_of(UsageError, reason("slurm.login_option", option=refused[0].params["option"]))
    lines = body.split("\n")
    first = next(at for at, line in enumerate(lines) if not line.startswith("#SBATCH"))
    text = "\n".join(["#!/bin/bash", *lines[:first], *_own_lines(spec, home, attempt), *lines[first:]])
    return text, [message(note) for note in notes if note.code not in _SILENT and note not in lacking]


def _own_lines(spec: JobSpec, home: str, attempt: int) -> Iterator[str]:
    yield f"folder={shlex.quote(f'{home}/.provision/slurm/{spec.name}/attempt-{attempt}')}"
    yield _RECORDS
    output = "0" if spec.kind is Kind.MPI else "%t"
    yield f'export SLURM_STDOUTMODE="$folder/{output}.log" SLURM_OPEN_MODE=a'


def secrets_text(secrets: Secrets) -> str:
    """Return the variables of a job as lines of a shell."""
    from provision.batch.export.shell import bash_word

    return "".join(f"{name}={bash_word(value)}\n" for name, value in secrets.env.items())


def _check(spec: JobSpec, site: LoginSite) -> None:
    if not spec.no_container and site.containers == "none":
        raise error_of(UsageError, reason("slurm.login_no_containers"))
    refused = [option for option, is_set in _unsupported(spec) if is_set]
    if refused:
        raise error_of(UsageError, reason("slurm.login_option", option=refused[0]))


def _unsupported(spec: JobSpec) -> Iterator[tuple[str, bool]]:
    yield "--config-file", bool(spec.config_files)
    yield "--gang=false", not spec.gang and spec.workers > 1
    yield "--sync-mode " + (spec.sync.mode if spec.sync else ""), spec.sync is not None and not fetches_code(spec)
    yield "--data without a container", spec.no_container and bool(spec.data)
    yield "--mount without a container", spec.no_container and bool(spec.mounts)


def sbatch_options(spec: JobSpec, token: str, after: list[int], labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of sbatch that are not in the script, as fields of the request ``submit``."""
    return {
        "comment": f"provision:{spec.name}@{token}",
        "requeue": False,
        "after": after,
        **({"nice": -spec.priority} if spec.priority else {}),
        **labels,
    }
