"""Export jobs for Kubernetes, Slurm or a shell, and read job files of all formats."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from provision.batch.document import read_document
from provision.batch.export.manifest_fields import is_manifest
from provision.batch.export.manifests import read_manifest, write_manifests
from provision.batch.export.script import shell_script
from provision.batch.export.slurm import slurm_script
from provision.batch.export.workload import TARGETS, ExportOptions, fetches_code
from provision.batch.ranks import Place
from provision.batch.spec_checks import check
from provision.documents.kubernetes import read_manifests
from provision.errors import UsageError
from provision.report.export_text import Exported, manifest_error, manifest_notes

if TYPE_CHECKING:
    from provision.batch.submission import Submission
    from provision.model import Cluster
    from provision.model.job import JobRecord, JobSpec
    from provision.model.job_requests import Secrets

_MANIFEST = re.compile(r"^[\"']?apiVersion[\"']?\s*:", re.MULTILINE)
_IN_BRACES = re.compile(r"[{,]\s*[\"']?apiVersion[\"']?\s*:")


def read_job_file(text: str, where: str, note: Callable[[str], None]) -> dict[str, Any]:
    """Return the fields of JobSpec that a file sets: a spec file, an MPIJob or a PyTorchJob.

    Raises:
        UsageError: the file is invalid; with the line and the path of the field.
    """
    if not _has_version(text):
        return read_document(text, where)
    documents = read_manifests(text, where)
    if not is_manifest(documents):
        return read_document(text, where)
    job = read_manifest(documents)
    if job.problems:
        raise manifest_error(where, job.problems)
    for line in manifest_notes(where, job.notes):
        note(line)
    return dict(job.fields)


def _has_version(text: str) -> bool:
    """Return whether a file can have a top-level ``apiVersion``; other files have no limits of manifests."""
    if not text.lstrip().startswith("{"):
        return _MANIFEST.search(text) is not None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return _IN_BRACES.search(text) is not None
    return "apiVersion" in document


def export(spec: JobSpec, target: str, options: ExportOptions) -> Exported:
    """Return a job as manifests or a script.

    Raises:
        UsageError: a part of the job cannot be exported.
    """
    if target not in TARGETS:
        raise UsageError(f"--to {target}: unknown target", remedy=f"Choose {', '.join(TARGETS)}.")
    check(spec)
    for name, path in options.data_paths.items():
        if not path.startswith("/") or not path.isprintable():
            raise UsageError(f"--data-path {name}={path}: not an absolute path", remedy=f"Write {name}=/PATH.")
    if target == "kubernetes":
        documents, notes = write_manifests(spec, options)
        return Exported(spec.name, target, "kubectl create -f FILE", documents=tuple(documents), notes=tuple(notes))
    script, command = (slurm_script, "sbatch FILE") if target == "slurm" else (shell_script, "bash FILE")
    body, notes = script(spec, options)
    return Exported(spec.name, target, command, "#!/bin/bash", body, notes=tuple(notes))


def placed(record: JobRecord) -> tuple[Place, ...]:
    """Return the places of the workers in the last attempt of a job; empty if it has not run."""
    workers = [one for one in record.assignments if one.role != "launcher"]
    return tuple(Place(one.node, one.address, one.gpus, one.uuids) for one in workers)


def with_volumes(options: ExportOptions, spec: JobSpec, cluster: Cluster | None) -> ExportOptions:
    """Return options with the paths of the job's volumes on the nodes of an inventory; given paths have precedence."""
    from provision.batch.data import volumes_of

    known = volumes_of(cluster) if cluster is not None else {}
    volumes = [known[name] for name, _ in spec.data if name in known]
    return replace(
        options,
        data_paths={**{one.name: one.path for one in volumes}, **options.data_paths},
        read_only=frozenset(one.name for one in volumes if one.read_only),
    )


def with_submission(options: ExportOptions, submission: Submission, *, with_secrets: bool) -> ExportOptions:
    """Return options with the names of a submission's secrets, and with their values if they are exported."""
    from provision.workflow.job_inputs import collect_job_inputs

    names = replace(options, sync_secrets=tuple(submission.sync), pull_secrets=submission.pull_secrets)
    return replace(names, secrets=collect_job_inputs(submission)[1]) if with_secrets else names


def with_logins(options: ExportOptions, spec: JobSpec) -> ExportOptions:
    """Return options with the stored credentials that the job would use here: of its registry and of its code."""
    from provision.workflow.stored_secrets import registry_credential, sync_credential

    servers = [registry_credential(image).get("server", "") for image in (spec.image, spec.worker_image) if image]
    names = options.sync_secrets
    if spec.sync is not None and fetches_code(spec):
        given = {name: "" for name in names if name != "GIT_SYNC_USERNAME"}
        names = tuple(dict.fromkeys((*names, *sync_credential(spec.sync, given))))
    return replace(options, registry=next(filter(None, servers), ""), sync_secrets=names)


def secrets_of_job(spec: JobSpec) -> Secrets:
    """Return the secrets of a job that was submitted, from the environment and the files of this machine.

    Raises:
        UsageError: a secret variable is not set here, or a file cannot be read.
    """
    from provision.batch.environment import Environment
    from provision.workflow.job_inputs import secrets_again

    return secrets_again(spec, Environment(), os.environ, ())


def environment_for(document: Mapping[str, Any], *, with_secrets: bool) -> Mapping[str, str]:
    """Return the environment for the secret variables of a file; without secrets their values do not matter."""
    names: Sequence[str] = document.get("secret_env", ())
    return dict(os.environ) if with_secrets else {**dict.fromkeys(names, ""), **os.environ}
