"""Build the spec and the secrets of a job from the arguments of ``provision submit`` and a spec file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from provision.batch.environment import Environment, IsSecret, Variable, classify, parse_arguments, parse_file
from provision.batch.fields import FIELDS, PULL_SECRET, field_value, form, switch
from provision.batch.flags import scan
from provision.batch.inference import inferred
from provision.batch.names import kind_of
from provision.batch.spec_checks import check, warnings_of
from provision.errors import UsageError
from provision.model import Secret
from provision.model.job import CodeSource, JobSpec, Kind


@dataclass(frozen=True)
class Words:
    """The parsed command line, by field; not validated."""

    kind: Kind | None
    command: tuple[str, ...]
    values: Mapping[str, tuple[str, ...]]
    flags: Mapping[str, str] = field(default_factory=dict)
    """Field -> the flag on the command line."""
    notes: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """Return the last value of a field, or an empty string."""
        return self.values.get(name, ("",))[-1]

    def true(self, name: str) -> bool:
        """Return whether a switch was given, and is not false."""
        return bool(self.text(name)) and self.take(name, switch)

    def take(self, name: str, reader: Callable[[str], Any]) -> Any:
        """Return the last value of a field, parsed by `reader`.

        Raises:
            UsageError: `reader` raised ValueError.
        """
        try:
            return reader(self.text(name))
        except ValueError as error:
            raise UsageError(f"{self.flags[name]} {self.text(name)}: {error}") from error


@dataclass(frozen=True)
class Here:
    """The submitter's folder, variables and files."""

    folder: str = "/"
    environ: Mapping[str, str] = field(default_factory=dict)
    env_files: Sequence[tuple[str, str]] = ()
    """(name, text)"""
    is_secret: IsSecret = lambda _name, _value: False


@dataclass(frozen=True)
class Submission:
    """A valid job and its secrets."""

    spec: JobSpec
    env: Mapping[str, Secret] = field(default_factory=dict)
    sync: Mapping[str, Secret] = field(default_factory=dict)
    pull_secrets: tuple[str, ...] = ()
    """Names of credentials for registries."""
    notes: tuple[str, ...] = ()
    """Warnings, and inferred values."""


def read_words(words: Sequence[str]) -> Words:
    """Parse a command line.

    Raises:
        UsageError: an unknown flag, a flag without value, or a command of several words that is not after ``--``.
    """
    scanned = scan(words)
    values: dict[str, tuple[str, ...]] = {}
    flags: dict[str, str] = {}
    for flag, name, value in scanned.given:
        values[flag.field] = (*values.get(flag.field, ()), value)
        flags[flag.field] = name
    loose = list(scanned.loose)
    kind = kind_of(loose[0]) if loose else None
    if kind is not None:
        loose.pop(0)
    if scanned.behind and loose:
        raise UsageError(f"'{loose[0]}' before -- is not an option", remedy="Write the whole command after --.")
    if len(loose) > 1:
        raise UsageError(
            f"the command is {len(loose)} words: {' '.join(loose[:4])} ...",
            remedy=f"If '{loose[0]}' is the value of a flag, use an equals sign: --gang={loose[0]}."
            if loose[0] in {"true", "false"}
            else "Write it in quotes, or after --.",
        )
    if (scanned.behind or loose) and values.get("command_text"):
        raise UsageError("the command is given twice: --command and last argument", remedy="Remove one of them.")
    command = scanned.behind or tuple(loose) or values.get("command_text", ())[-1:]
    return Words(kind, command, values, flags, scanned.notes)


def submission(words: Words, here: Here, document: Mapping[str, Any] | None = None) -> Submission:
    """Combine a command line and a spec file; flags override the file, and names with values are merged.

    Raises:
        UsageError: the job is invalid.
    """
    base = dict(document or {})
    recorded = base.pop(PULL_SECRET, ())
    pull_secrets = words.values.get(PULL_SECRET) or recorded
    fields = {**base, **_own(words, base)}
    notes = list(words.notes)
    environment = _environment(words, here, base)
    fields["env"] = dict(environment.plain)
    fields["secret_env"] = tuple(environment.secret)
    fields |= _launch(words, fields)
    fields |= _mounts(words, here, fields)
    fields |= _places(words, fields)
    fields |= _annotations(words, fields)
    fields |= _command(words, base, notes)
    code = _code(words, here, base, environment)
    spec = JobSpec(**{"name": "", **fields, "sync": code})
    if not spec.image and spec.worker_image:
        spec = replace(spec, image=spec.worker_image)
    if spec.ranks and not spec.launcher:
        spec = replace(spec, launcher="mpirun")
    check(spec)
    if spec.no_container and pull_secrets:
        raise UsageError("--image-pull-secret and --no-container exclude each other", remedy="Remove one of them.")
    notes += [*environment.notes, *warnings_of(spec)]
    if words.text("sync_revision") and code is None:
        notes.append("--sync-revision: no code is fetched without --sync-mode and --sync-source")
    if environment.sync and code is None:
        notes.append(f"{', '.join(environment.sync)}: no code is fetched without --sync-mode and --sync-source")
    return Submission(
        spec,
        environment.secret,
        environment.sync if code else {},
        tuple(pull_secrets),
        tuple(dict.fromkeys(notes)),
    )


def _own(words: Words, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of JobSpec that are flags themselves."""
    values: dict[str, Any] = {}
    for name, texts in words.values.items():
        if name not in FIELDS or name == "env":
            continue
        several = form(name) in {"words", "numbers", "pairs", "data"}
        try:
            value = field_value(name, list(texts) if several else texts[-1])
        except ValueError as error:
            raise UsageError(f"{words.flags[name]} {' '.join(texts)}: {error}") from error
        values[name] = {**base.get(name, {}), **value} if form(name) == "pairs" else value
    return values


def _environment(words: Words, here: Here, base: Mapping[str, Any]) -> Environment:
    given = [variable for name, text in here.env_files for variable in parse_file(text, name, here.environ)]
    given += parse_arguments(words.values.get("env", ()), here.environ)
    named = dict.fromkeys(base.get("secret_env", ()))
    missing = [name for name in named if name not in {variable.name for variable in given}]
    variables = [Variable(name, value) for name, value in base.get("env", {}).items()]
    variables += [*parse_arguments(missing, here.environ), *given]
    return classify(variables, lambda name, value: name in named or here.is_secret(name, value))


def _launch(words: Words, fields: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if words.text("np"):
        values["launcher"] = "mpirun"
        values["ranks"] = 0 if words.text("np") == "auto" else words.take("np", _count)
    if words.text("device"):
        kind, _, count = words.text("device").partition("=")
        if kind != "nvidia.com/gpu":
            raise UsageError(f"--device {kind}: unknown kind of device", remedy="Use --gpus N.")
        values["gpus"] = field_value("gpus", count) if count.isdecimal() else -1
    if words.text("total_gpus"):
        total, workers = words.take("total_gpus", _count), fields.get("workers", 1)
        if workers < 1 or total % workers:
            raise UsageError(
                f"-G {total}: not a multiple of {workers} workers", remedy="Specify the GPUs of each worker: --gpus N."
            )
        values["gpus"] = total // workers
    return values


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError("must be a number, at least 1")
    return int(text)


def _mounts(words: Words, here: Here, fields: Mapping[str, Any]) -> dict[str, Any]:
    more = []
    for text in words.values.get("data_dir", ()):
        source, _, target = text.partition(":")
        more.append(f"{source}:{target or source}")
    files = []
    for text in fields.get("config_files", ()):
        source, _, target = text.partition(":")
        full = str(PurePosixPath(here.folder) / source)
        files.append(f"{full}:{target or full}")
    return {"mounts": (*fields.get("mounts", ()), *more), "config_files": tuple(files)}


def _places(words: Words, fields: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in words.values.get("toleration", ()):
        if text.partition("=")[0] not in {"all", "drained", "node.kubernetes.io/unschedulable"}:
            raise UsageError(
                f"--toleration {text}: nodes have no taints",
                remedy="Use --toleration all to include drained nodes.",
            )
        values["allow_drained"] = True
    if words.text("pack"):
        if words.true("pack") and fields.get("spread"):
            raise UsageError("--pack and --spread exclude each other", remedy="Remove one of them.")
        values["spread"] = not words.true("pack")
    if words.text("queue"):
        values["hold"] = True
    return values


def _annotations(words: Words, fields: Mapping[str, Any]) -> dict[str, Any]:
    annotations = {
        name: words.text(field)
        for field, name in (("model_name", "modelName"), ("model_source", "modelSource"))
        if words.text(field)
    }
    labels = {"queue": words.text("queue")} if words.text("queue") else {}
    return {
        "annotations": {**fields.get("annotations", {}), **annotations},
        "labels": {**fields.get("labels", {}), **labels},
    }


def _command(words: Words, base: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    command = words.command or base.get("command", ())
    kind = words.kind or base.get("kind")
    if words.kind and base.get("kind") not in {None, words.kind}:
        raise UsageError(
            f"the spec file has the kind {base['kind']}, and the command line has {words.kind}",
            remedy="Remove the kind from the command line.",
        )
    if kind is None and command:
        kind, why = inferred(command)
        notes.append(f"job type {kind} was inferred: {why}")
    return {"command": tuple(command), "kind": kind or Kind.RUN}


def _code(words: Words, here: Here, base: Mapping[str, Any], environment: Environment) -> CodeSource | None:
    old = base.get("sync") or CodeSource("", "")
    mode, source = words.text("sync_mode") or old.mode, words.text("sync_source") or old.source
    if mode == "hdfs":
        raise UsageError("--sync-mode hdfs is not supported", remedy="Modes are git, rsync and local.")
    if mode == "local":
        source = str(PurePosixPath(here.folder) / (source or "."))
    if not mode and not source:
        return None
    revision = words.text("sync_revision") or environment.revision or old.revision
    options = {**old.options, **environment.sync_options}
    return dataclasses.replace(old, mode=mode, source=source, revision=revision, options=options)
