"""Kubernetes manifests: parsing within limits, and strict validation against the lists of fields of their schemas.

``files/kubernetes_core.json`` has the fields of Kubernetes' own kinds (written by ``tools/kubernetes_fields.py``), and
``files/kubernetes_operators.json`` those of Kubeflow's: type -> field -> type. ``name!`` is a required field; ``[T]``
is a list, ``{T}`` a mapping from texts, ``string:A|B`` one of these words. Rules of the API server beyond types, such
as CEL rules and webhooks, are not checked.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml

from provision.documents.text import printable_line
from provision.errors import UsageError
from provision.model.reason import Reason, reason
from provision.resources import package_path

MOST_BYTES = 1 << 20
"""The size limit of Kubernetes' objects is 1.5 MiB."""
MOST_DOCUMENTS = 32
MOST_NODES = 20_000
DEEPEST = 40
LONGEST_KEY = 317
"""Of labels and annotations: a domain of 253 characters, a slash and a name of 63."""
MOST_PROBLEMS = 50
_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_FOLDER = package_path("documents", "files")
_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
_RENAMED = {
    ("RuntimePatch", "podTemplateOverrides"): "runtimePatches",
    ("TrainJobSpec", "podTemplateOverrides"): "runtimePatches",
}
"""Former field of a type -> its present name, where no similar name leads to it."""
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_OTHER_NUMBER = re.compile(r"[-+]?(0[0-7_]+|0[xob][0-9a-fA-F_]+|[0-9][0-9_]*|\.inf|\.nan)", re.IGNORECASE)
_WORDS: Mapping[str, Any] = {
    **dict.fromkeys(("true", "yes", "on", "y"), True),
    **dict.fromkeys(("false", "no", "off", "n"), False),
    **dict.fromkeys(("", "~", "null"), None),
}
"""Plain words of YAML 1.1, which kubectl reads, in lower case."""


@dataclass(frozen=True)
class Manifest:
    """One document of a file."""

    value: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    """Path of a field -> its line in the file."""

    @property
    def kind(self) -> str:
        """``apiVersion/kind``, for example ``kubeflow.org/v1/PyTorchJob``."""
        return f"{self.value.get('apiVersion')}/{self.value.get('kind')}"

    def line(self, path: str) -> int:
        """Return the line of a field, or that of the nearest field above it."""
        while path and path not in self.lines:
            path = parent(path)
        return self.lines.get(path, 1)


def parent(path: str) -> str:
    """Return the path of the field or list that contains a field; empty for one at the top."""
    return path.rpartition("[")[0] if path.endswith("]") else path.rpartition(".")[0]


def read_manifests(text: str, where: str) -> list[Manifest]:
    """Return the documents of a file; empty ones are left out.

    Raises:
        UsageError: too large, nested too deeply, invalid YAML, with anchors, or with a key that is given twice.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise UsageError(f"{where}: larger than {MOST_BYTES >> 20} MiB", remedy="Write one job into the file.")
    manifests = []
    try:
        _check_events(text, where)
        for node in yaml.compose_all(text, Loader=_LOADER):
            lines: dict[str, int] = {}
            value = _value(node, "", lines, where) if node is not None else None
            if value is None:
                continue
            if not isinstance(value, dict):
                raise UsageError(f"{where}:{node.start_mark.line + 1}: a manifest must be a mapping")
            manifests.append(Manifest(value, lines))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = printable_line(str(getattr(error, "problem", None) or error).splitlines()[0])
        raise UsageError(f"{where}{line}: invalid YAML: {problem}") from error
    return manifests


def _check_events(text: str, where: str) -> None:
    """Refuse documents that would take long, before anything is built from them."""
    depth = nodes = documents = 0
    for event in yaml.parse(text, Loader=_LOADER):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise UsageError(f"{where}:{line}: anchors (& and *) are not supported", remedy="Write the value out.")
        if getattr(event, "tag", None):
            raise UsageError(f"{where}:{line}: tags such as !!str are not supported", remedy="Write text in quotes.")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        nodes += isinstance(event, yaml.NodeEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if depth > DEEPEST or nodes > MOST_NODES or documents > MOST_DOCUMENTS:
            raise UsageError(
                f"{where}:{line}: more than {DEEPEST} levels, {MOST_NODES} values or {MOST_DOCUMENTS} documents",
                remedy="Write one job into the file.",
            )


def _value(node: yaml.Node, path: str, lines: dict[str, int], where: str) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, f"{path}[{index}]", lines, where) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        for key, item in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise UsageError(f"{where}:{line}: a key must be text")
            if len(key.value) > LONGEST_KEY:
                raise UsageError(f"{where}:{line}: a key has more than {LONGEST_KEY} characters")
            inner = f"{path}.{key.value}" if path else key.value
            if key.value in values:
                raise UsageError(
                    f"{where}:{line}: {printable_line(inner)} is given twice", remedy="Remove one of them."
                )
            lines[inner] = line
            values[key.value] = _value(item, inner, lines, where)
        return values
    return _scalar(node.value, is_quoted=bool(getattr(node, "style", None)))


def _scalar(text: str, *, is_quoted: bool) -> Any:
    """Return a value with the type that kubectl gives it; other numbers than decimal ones become floats."""
    if is_quoted:
        return text
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text) and len(text) < 20:  # noqa: PLR2004 - longer ones exceed 64 bits
        return int(text)
    if _FLOAT.fullmatch(text) or _OTHER_NUMBER.fullmatch(text):
        return float(text) if _FLOAT.fullmatch(text) else 0.5
    return text


@cache
def _schema() -> tuple[Mapping[str, str], Mapping[str, Mapping[str, str]]]:
    parts = [json.loads((_FOLDER / f"kubernetes_{name}.json").read_text("utf-8")) for name in ("core", "operators")]
    return {**parts[0]["kinds"], **parts[1]["kinds"]}, {**parts[0]["types"], **parts[1]["types"]}


def known_kinds() -> list[str]:
    """Return ``apiVersion/kind`` of all known kinds."""
    return list(_schema()[0])


def problems(value: Mapping[str, Any]) -> list[tuple[str, Reason]]:
    """Return the violations of the schema of a document's kind, each with the path of the field."""
    kinds, _ = _schema()
    kind = f"{value.get('apiVersion')}/{value.get('kind')}"
    if kind not in kinds:
        return [("kind", reason("manifest.unknown_kind", kind=printable_line(kind), known=kinds))]
    return list(itertools.islice(_of_type(value, kinds[kind], ""), MOST_PROBLEMS))


def _of_type(value: Any, kind: str, path: str) -> Iterator[tuple[str, Reason]]:
    """Yield the violations of a type; null is the same as no value."""
    _, types = _schema()
    if kind == "any" or (value is None and path):
        return
    if kind in types:
        yield from _fields(value, kind, path)
    elif kind[0] == "[":
        if not isinstance(value, list):
            yield _wrong(path, value, "a list")
            return
        for index, item in enumerate(value):
            yield from _of_type(item, kind[1:-1], f"{path}[{index}]")
    elif kind[0] == "{":
        if not isinstance(value, Mapping):
            yield _wrong(path, value, "a mapping")
            return
        for key, item in value.items():
            yield from _of_type(item, kind[1:-1], f"{path}.{key}")
    else:
        yield from _of_scalar(value, kind, path)


def _of_scalar(value: Any, kind: str, path: str) -> Iterator[tuple[str, Reason]]:
    name, _, words = kind.partition(":")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_right = {
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "integer": is_number and isinstance(value, int),
        "number": is_number,
        "int-or-string": isinstance(value, str) or (is_number and isinstance(value, int)),
        "quantity": is_number or (isinstance(value, str) and _QUANTITY.fullmatch(value) is not None),
    }[name]
    if not is_right:
        texts = {"string": "text", "boolean": "true or false", "integer": "a whole number", "number": "a number"}
        more = ", in quotes" if name == "string" and isinstance(value, int | float) else ""
        yield _wrong(path, value, texts.get(name, "a quantity such as 1, 500m or 2Gi") + more)
    elif words and value not in words.split("|"):
        yield _wrong(path, value, "one of " + ", ".join(words.split("|")))


def _fields(value: Any, kind: str, path: str) -> Iterator[tuple[str, Reason]]:
    fields = _schema()[1][kind]
    if not isinstance(value, Mapping):
        yield _wrong(path, value, "a mapping")
        return
    types = {name.rstrip("!"): of for name, of in fields.items()}
    for name, item in value.items():
        inner = f"{path}.{name}" if path else name
        if name in types:
            yield from _of_type(item, types[name], inner)
        else:
            near = _RENAMED.get((kind, name), "") or next(iter(difflib.get_close_matches(name, types, 1, 0.6)), "")
            yield inner, reason("manifest.unknown_field", path=printable_line(inner), near=near, known=sorted(types))
    for name in fields:
        if name.endswith("!") and value.get(name[:-1]) is None:
            inner = f"{path}.{name[:-1]}" if path else name[:-1]
            yield path, reason("manifest.missing_field", path=printable_line(inner))


def _wrong(path: str, value: Any, expected: str) -> tuple[str, Reason]:
    shown = printable_line(json.dumps(value, default=str))[:80]
    return path, reason("manifest.wrong_type", path=printable_line(path), value=shown, expected=expected)
