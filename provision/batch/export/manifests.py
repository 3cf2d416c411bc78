"""Manifests that can be read back: the fields that a manifest does not have are annotations of it.

An annotation ``provision/FIELD`` is written for each field of the specification that reading the manifest alone would
not give. Reading uses an annotation only while the manifest still gives what it gave when the annotation was written:
after a change of a manifest, its own fields count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import Any

from provision.batch.export.findings import Findings
from provision.batch.export.kubernetes import READABLE, documents, kind_of
from provision.batch.export.manifest_fields import PREFIX, Reading, job_of, read_fields
from provision.batch.export.workload import ExportOptions, environment_of
from provision.batch.fields import FIELDS, PULL_SECRET, field_value, form
from provision.documents.kubernetes import Manifest
from provision.errors import UsageError
from provision.model.job import CodeSource, JobSpec, as_document
from provision.model.reason import Reason, reason

_COMMAND = frozenset({"command", "shell", "launcher", "ranks", "procs_per_gpu", "mps"})
"""Fields that together give the command of a container."""
_TEXTS = frozenset({"text", "whole", "switch", "kind", "share_memory", "pull", "clean_task_policy"})


@dataclass(frozen=True)
class JobManifest:
    """The specification in a manifest."""

    fields: Mapping[str, Any]
    """Fields of JobSpec, and `PULL_SECRET`; empty if there are problems."""
    problems: tuple[tuple[int, Reason], ...] = ()
    """(line, problem)"""
    notes: tuple[tuple[int, Reason], ...] = ()


def write_manifests(spec: JobSpec, options: ExportOptions) -> tuple[list[dict[str, Any]], list[Reason]]:
    """Return the manifests of a job, the job itself last, and what has no counterpart.

    Raises:
        UsageError: the job cannot be written as this kind.
    """
    written, notes = documents(spec, options)
    if kind_of(spec, options) in READABLE:
        annotations = _annotations(spec, options, _fields_alone(written[-1]))
        if annotations:
            metadata = written[-1]["metadata"]
            metadata["annotations"] = {**metadata.get("annotations", {}), **annotations}
    return written, notes


def read_manifest(documents_of_file: list[Manifest]) -> JobManifest:
    """Return the specification in a file that has an MPIJob or PyTorchJob."""
    findings = Findings()
    job = job_of(documents_of_file, findings)
    reading = read_fields(job, findings) if job else Reading(findings)
    fields: dict[str, Any] = {}
    if job and not findings.problems:
        fields = _combined(reading)
    line = job.line if job else (lambda _: 1)
    problems = tuple((line(path), problem) for path, problem in findings.problems)
    notes = {note: line(path) for path, note in findings.notes}
    return JobManifest({} if problems else fields, problems, tuple((at, note) for note, at in notes.items()))


def _combined(reading: Reading) -> dict[str, Any]:
    """Return the fields with those of the annotations that still hold."""
    findings = reading.findings
    annotated: dict[str, Any] = {}
    for name, text in reading.annotations.items():
        value = _decoded(name, text, findings)
        if value is not None:
            annotated[name] = value
    fields = _without_derived(reading.fields, annotated)
    changed = _changed(fields, annotated, ExportOptions(queue=reading.queue))
    if changed:
        findings.notes.append(("metadata.annotations", reason("manifest.changed", fields=sorted(changed))))
    valid = {name: value for name, value in annotated.items() if name not in changed}
    fields = {**_without_derived(reading.fields, valid), **valid}
    for name, (path, number) in findings.pending.items():
        if (1 if name == "sync" and fields.get(name) else len(fields.get(name) or ())) != number:
            findings.refuse(path, "initContainers" if name == "sync" else "volumes")
    if reading.sync_secrets:
        fields["secret_env"] = (*fields.get("secret_env", ()), *reading.sync_secrets)
    return fields


def _changed(fields: Mapping[str, Any], annotated: Mapping[str, Any], options: ExportOptions) -> set[str]:
    """Return the annotated fields whose part of the manifest was changed since the annotations were written."""
    combined = {**fields, **annotated}
    combined.pop(PULL_SECRET, None)
    try:
        spec = JobSpec(**combined)
        expected = _without_derived(_fields_alone(documents(spec, options)[0][-1]), annotated)
    except (UsageError, TypeError, ValueError, IndexError):
        return set(annotated)
    changed = {name for name in annotated if fields.get(name, _MISSING) != expected.get(name, _MISSING)}
    if fields.get("command") != expected.get("command"):
        changed |= _COMMAND & annotated.keys()
    return changed


_MISSING = object()


def _fields_alone(document: Mapping[str, Any]) -> dict[str, Any]:
    return read_fields(Manifest(document), Findings()).fields


def _without_derived(fields: Mapping[str, Any], annotated: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields without the variables that every job gets."""
    env = dict(fields.get("env", {}))
    names = ("name", "kind", "command", "gpus", "workers")
    known = {name: fields[name] for name in names if name in fields}
    base = JobSpec(**{"name": "", "command": (), **known, "preset": annotated.get("preset", "")})
    derived = environment_of(base)
    return {**fields, "env": {name: value for name, value in env.items() if derived.get(name) != value}}


def _annotations(spec: JobSpec, options: ExportOptions, alone: Mapping[str, Any]) -> dict[str, str]:
    """Return an annotation for each field that reading the manifest would not give."""
    read = _without_derived(alone, {"preset": spec.preset})
    defaults = {item.name: getattr(JobSpec("", spec.kind, ()), item.name) for item in dataclass_fields(JobSpec)}
    odd = [name for name in FIELDS if getattr(spec, name) != read.get(name, defaults[name])]
    texts = {f"{PREFIX}{name}": _encoded(name, getattr(spec, name)) for name in odd}
    if options.pull_secrets:
        texts[f"{PREFIX}{PULL_SECRET}"] = json.dumps(list(options.pull_secrets))
    return texts


def _encoded(name: str, value: Any) -> str:
    if form(name) in _TEXTS:
        return str(value).lower() if isinstance(value, bool) else str(value)
    if form(name) == "duration":
        return f"{value:f}s"
    document = as_document(value)
    if name == "data":
        document = [":".join(pair) for pair in document]
    if form(name) == "numbers":
        document = [str(number) for number in document]
    return json.dumps(document, ensure_ascii=False)


def _decoded(name: str, text: str, findings: Findings) -> Any:
    """Return the value of an annotation; None, and a problem, if it is invalid."""
    path = f"metadata.annotations.{PREFIX}{name}"
    try:
        if name not in (*FIELDS, PULL_SECRET) or name in {"name", "kind"}:
            raise ValueError("there is no such field")  # noqa: TRY301 - one place reports all causes
        if form(name) in _TEXTS or form(name) == "duration":
            return field_value(name, text)
        document = json.loads(text)
        if name == "sync":
            return _source(document)
        items = document.items() if isinstance(document, dict) else [("", item) for item in document]
        if not all(isinstance(item, str) for pair in items for item in pair):
            raise ValueError("its parts must be texts")  # noqa: TRY301
        return field_value(name, document)
    except (ValueError, TypeError, RecursionError) as error:
        findings.problems.append((path, reason("manifest.annotation", path=path, cause=str(error))))
        return None


def _source(document: Any) -> CodeSource:
    """Return the source of code from an annotation."""
    names = {"mode", "source", "revision", "options"}
    if not isinstance(document, dict) or document.keys() - names:
        raise ValueError(f"expected the keys {', '.join(sorted(names))}")
    options = document.pop("options", {})
    if not isinstance(options, dict) or not all(isinstance(item, str) for pair in options.items() for item in pair):
        raise ValueError("options must be names with texts")
    source: CodeSource = field_value("sync", document)
    return replace(source, options=options)
