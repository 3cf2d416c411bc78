"""Spec files of jobs: YAML (or JSON) whose keys are the flags of ``provision submit``, with underscores or dashes.

The output of ``submit --dry-run -o yaml`` (or json) is a spec file too: its key ``spec`` is read.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from provision.batch.fields import FIELDS, PULL_SECRET, Given, field_value, form
from provision.errors import UsageError
from provision.model.job import JobSpec, as_document

_OTHERS = {
    "type": "kind",
    "trainer": "kind",
    "mount": "mounts",
    "config_file": "config_files",
    "label": "labels",
    "annotation": "annotations",
    "ulimit": "ulimits",
}
"""Aliases of keys."""
DRY_RUN_KEYS = frozenset(
    {"fits", "reason", "code", "params", "placement", "env", "commands", "files", "warnings", "spec"}
)
"""Keys of the output of a dry run."""
_FIRST = ("kind", "name", "image", "gpus", "workers", "command")


def read_document(text: str, where: str) -> dict[str, Any]:
    """Return the fields of JobSpec that a spec file sets.

    Every value is text without conversion: ``LR: 0.10`` is the text 0.10, and needs no quotes.

    Raises:
        UsageError: invalid YAML, an unknown key, or an invalid value; with file and line.
    """
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise UsageError(f"{where}{_line(error)}: invalid YAML: {_problem(error)}") from error
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{where}: a spec file must consist of `key: value` lines", remedy=_example())
    fields: dict[str, Any] = {}
    for key, node, line in _items(_spec(root), where):
        field = _field(key, f"{where}:{line}")
        if field in fields:
            raise UsageError(f"{where}:{line}: {key} is given twice")
        try:
            fields[field] = field_value(field, _timed(field, _plain(node, f"{where}:{line}: {key}")))
        except ValueError as error:
            raise UsageError(f"{where}:{line}: {key}: {error}") from error
    return fields


def _spec(root: yaml.MappingNode) -> yaml.MappingNode:
    """Return the value of ``spec`` in the output of a dry run, and any other document unchanged."""
    parts = {key.value: value for key, value in root.value if isinstance(key, yaml.ScalarNode)}
    spec = parts.get("spec")
    return spec if isinstance(spec, yaml.MappingNode) and parts.keys() <= DRY_RUN_KEYS else root


def brief(spec: JobSpec, *, sync_secrets: Sequence[str] = (), pull_secrets: Sequence[str] = ()) -> dict[str, Any]:
    """Return a spec as a document without default values.

    Args:
        spec: the job.
        sync_secrets: names of the secret variables for fetching the code; their values come from the environment.
        pull_secrets: names of the credentials for registries.
    """
    whole = as_document(spec)
    defaults = {item.name: _default(item) for item in dataclasses.fields(spec)}
    short = {
        key: whole[key] for key in (*_FIRST, *whole) if key in _FIRST[:2] or whole[key] != as_document(defaults[key])
    }
    if len(spec.command) == 1:
        short["command"] = spec.command[0]
    if spec.data:
        short["data"] = [f"{name}:{target}" for name, target in spec.data]
    if spec.sync:
        parts = {"mode": spec.sync.mode, "source": spec.sync.source, "revision": spec.sync.revision}
        short["sync"] = {key: value for key, value in parts.items() if value}
        short["env"] = {**short.get("env", {}), **spec.sync.options} or None
        short = {key: value for key, value in short.items() if value is not None}
    if sync_secrets:
        short["secret_env"] = [*spec.secret_env, *sync_secrets]
    if pull_secrets:
        short[PULL_SECRET] = list(pull_secrets)
    return short


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return None if item.default is dataclasses.MISSING else item.default


def _items(node: yaml.MappingNode, where: str) -> Iterator[tuple[str, yaml.Node, int]]:
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise UsageError(f"{where}:{line}: a key must be text")
        yield key.value, value, line


def _field(key: str, where: str) -> str:
    name = re.sub(r"(?<=[a-z])(?=[A-Z])|-", "_", key).lower()
    field = _OTHERS.get(name, name)
    if field in FIELDS or field == PULL_SECRET:
        return field
    close = difflib.get_close_matches(field, FIELDS, 1, 0.6)
    raise UsageError(
        f"{where}: unknown key {key}" + (f"; did you mean {close[0]}?" if close else ""),
        remedy=f"Choose one of these keys: {', '.join((*FIELDS, PULL_SECRET))}.",
    )


def _plain(node: yaml.Node, where: str) -> Given:
    """Return a value as text, or as a list or mapping of texts."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_text(item, where) for item in node.value]
    return {key: _text(value, f"{where}.{key}") for key, value, _ in _items(node, where)}  # type: ignore[arg-type]


def _text(node: yaml.Node, where: str) -> str:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    raise UsageError(f"{where}: expected text or a number, not a list or a mapping")


def _timed(field: str, given: Given) -> Given:
    """Return a value; a duration without a unit is seconds in a file."""
    bare = form(field) == "duration" and isinstance(given, str) and re.fullmatch(r"\d+(\.\d+)?", given)
    return f"{given}s" if bare else given


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}" if mark else ""


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or error).splitlines()[0]


def _example() -> str:
    spec: Mapping[str, Any] = {
        "kind": "pytorch",
        "name": "mnist",
        "image": "IMAGE",
        "gpus": 1,
        "command": "python3 x.py",
    }
    return "For example:\n" + yaml.safe_dump(dict(spec), sort_keys=False).rstrip()
