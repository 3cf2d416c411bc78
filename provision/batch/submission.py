"""From the words behind ``provision submit``, and a spec file, to a job's spec and its secrets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from provision.batch.environment import Environment, IsSecret, Variable, sorted_out, typed, written
from provision.batch.fields import FIELDS, PULL_SECRET, field_value, form, switch
from provision.batch.flags import scan
from provision.batch.inference import inferred
from provision.batch.names import kind_of
from provision.batch.spec_checks import check, doubts
from provision.errors import UsageError
from provision.model import Secret
from provision.model.job import CodeSource, JobSpec, Kind

__all__ = ["Here", "Submission", "Words", "read_words", "submission"]


@dataclass(frozen=True)
class Words:
    """What was typed, by the field that it sets; nothing is judged yet."""

    kind: Kind | None
    command: tuple[str, ...]
    values: Mapping[str, tuple[str, ...]]
    flags: Mapping[str, str] = field(default_factory=dict)
    """Field -> the flag as it was typed."""
    notes: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """Return the last value of a field, empty for none."""
        return self.values.get(name, ("",))[-1]

    def true(self, name: str) -> bool:
        """Return whether a switch was given, and not as false."""
        return bool(self.text(name)) and self.take(name, switch)

    def take(self, name: str, reader: Callable[[str], Any]) -> Any:
        """Return what `reader` makes of a field's last value.

        Raises:
            UsageError: it says that it cannot be.
        """
        try:
            return reader(self.text(name))
        except ValueError as error:
            raise UsageError(f"{self.flags[name]} {self.text(name)}: {error}") from error


@dataclass(frozen=True)
class Here:
    """What of this machine a submission takes."""

    folder: str = "/"
    environ: Mapping[str, str] = field(default_factory=dict)
    env_files: Sequence[tuple[str, str]] = ()
    """(name, text)"""
    is_secret: IsSecret = lambda _name, _value: False


@dataclass(frozen=True)
class Submission:
    """A job that may be started, its secrets apart from it."""

    spec: JobSpec
    env: Mapping[str, Secret] = field(default_factory=dict)
    sync: Mapping[str, Secret] = field(default_factory=dict)
    pull_secrets: tuple[str, ...] = ()
    """Names of logins for registries."""
    notes: tuple[str, ...] = ()
    """Warnings: what is odd, and what was understood."""


def read_words(words: Sequence[str]) -> Words:
    """Read a command line.

    Raises:
        UsageError: a flag that there is not or without value, or a command that is not one word or behind ``--``.
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
        raise UsageError(f"'{loose[0]}' in front of --: not an option", remedy="Put the whole command behind --.")
    if len(loose) > 1:
        raise UsageError(
            f"the command is {len(loose)} words: {' '.join(loose[:4])} ...",
            remedy=f"Is '{loose[0]}' a flag's value? Write it with an equals sign: --gang={loose[0]}."
            if loose[0] in {"true", "false"}
            else "Put it in quotes, or word by word behind --.",
        )
    if (scanned.behind or loose) and values.get("command_text"):
        raise UsageError("the command is given twice: by --command, and as the last word", remedy="Give it once.")
    command = scanned.behind or tuple(loose) or values.get("command_text", ())[-1:]
    return Words(kind, command, values, flags, scanned.notes)


def submission(words: Words, here: Here, document: Mapping[str, Any] | None = None) -> Submission:
    """Put together what was typed and what a spec file says; flags override the file, names with values are joined.

    Args:
        words: see `read_words`.
        here: this machine's folder, variables and files.
        document: see `provision.batch.document.read_document`.

    Raises:
        UsageError: what is asked for cannot be.
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
    fields |= _remarks(words, fields)
    fields |= _command(words, base, notes)
    code = _code(words, here, base, environment)
    spec = JobSpec(**{"name": "", **fields, "sync": code})
    if not spec.image and spec.worker_image:
        spec = replace(spec, image=spec.worker_image)
    if spec.ranks and not spec.launcher:
        spec = replace(spec, launcher="mpirun")
    check(spec)
    if spec.no_container and pull_secrets:
        raise UsageError("--image-pull-secret is for images, and --no-container takes none", remedy="Leave it out.")
    notes += [*environment.notes, *doubts(spec)]
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
    """Return the fields of JobSpec that flags set directly."""
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
    given = [variable for name, text in here.env_files for variable in written(text, name, here.environ)]
    given += typed(words.values.get("env", ()), here.environ)
    named = dict.fromkeys(base.get("secret_env", ()))
    missing = [name for name in named if name not in {variable.name for variable in given}]
    variables = [Variable(name, value) for name, value in base.get("env", {}).items()]
    variables += [*typed(missing, here.environ), *given]
    return sorted_out(variables, lambda name, value: name in named or here.is_secret(name, value))


def _launch(words: Words, fields: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if words.text("np"):
        values["launcher"] = "mpirun"
        values["ranks"] = 0 if words.text("np") == "auto" else words.take("np", _count)
    if words.text("device"):
        kind, _, count = words.text("device").partition("=")
        if kind != "nvidia.com/gpu":
            raise UsageError(f"--device {kind}: unknown kind of device", remedy="Write --gpus N.")
        values["gpus"] = field_value("gpus", count) if count.isdecimal() else -1
    if words.text("total_gpus"):
        total, workers = words.take("total_gpus", _count), fields.get("workers", 1)
        if workers < 1 or total % workers:
            raise UsageError(
                f"-G {total} GPUs cannot be dealt out alike to {workers} workers", remedy="--gpus counts for each."
            )
        values["gpus"] = total // workers
    return values


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError("a number from 1 on is wanted")
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
                f"--toleration {text}: nodes have no taints here",
                remedy="--toleration all lets the job run on drained nodes too.",
            )
        values["allow_drained"] = True
    if words.text("pack"):
        if words.true("pack") and fields.get("spread"):
            raise UsageError("--pack and --spread exclude each other", remedy="Give one of them.")
        values["spread"] = not words.true("pack")
    if words.text("queue"):
        values["hold"] = True
    return values


def _remarks(words: Words, fields: Mapping[str, Any]) -> dict[str, Any]:
    remarks = {
        name: words.text(field)
        for field, name in (("model_name", "modelName"), ("model_source", "modelSource"))
        if words.text(field)
    }
    labels = {"queue": words.text("queue")} if words.text("queue") else {}
    return {
        "annotations": {**fields.get("annotations", {}), **remarks},
        "labels": {**fields.get("labels", {}), **labels},
    }


def _command(words: Words, base: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    command = words.command or base.get("command", ())
    kind = words.kind or base.get("kind")
    if words.kind and base.get("kind") not in {None, words.kind}:
        raise UsageError(
            f"the spec file is of a job of kind {base['kind']}, and `submit {words.kind}` was typed",
            remedy="Leave the kind out on the command line.",
        )
    if kind is None and command:
        kind, why = inferred(command)
        notes.append(f"no job type was given, so the type is {kind} ({why})")
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
