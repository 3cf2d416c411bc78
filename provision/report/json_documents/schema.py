"""JSON Schemas of the documents, from their types. A key's description is the docstring below it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from provision.model import reason
from provision.report.json_documents.verbs import DOCUMENTS, ERROR, MODULES

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(verb: str) -> dict[str, Any]:
    """Return the schema of the documents of a verb."""
    return _schema(f"provision {verb} --json", DOCUMENTS[verb])


def error_schema() -> dict[str, Any]:
    """Return the schema of the document of a verb that fails before it has a result."""
    return _schema("The error of a provision command with --json", ERROR)


def components(types: tuple[Any, ...]) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the schemas of types, and those of the types within them by name."""
    roots, parts = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    return list(roots), {name: _described(name, part) for name, part in parts.items()}


def _schema(title: str, types: tuple[Any, ...]) -> dict[str, Any]:
    roots, parts = components(types)
    root = roots[0] if len(roots) == 1 else {"anyOf": roots}
    return {"$schema": _DIALECT, "title": title, **root, "$defs": parts}


def _described(name: str, part: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type with the descriptions of its keys, which are in the order of the type."""
    if "properties" not in part:
        return part
    keys = part["properties"]
    described = {key: {"description": text, **keys[key]} for key, text in _texts(name)}
    return {**part, "properties": {**described, **keys, **described}, "additionalProperties": False}


def _texts(name: str) -> Iterator[tuple[str, str]]:
    """Yield the keys of a type and of its bases, each with its docstring."""
    part = _classes().get(name)
    if part is None:
        return
    for base in part.bases:
        yield from _texts(base.id if isinstance(base, ast.Name) else "")
    for line, following in zip(part.body, part.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(following, ast.Expr):
            yield line.target.id, ast.literal_eval(following.value)


@cache
def _classes() -> dict[str, ast.ClassDef]:
    """Return the types by name, as they are written."""
    trees = [ast.parse(inspect.getsource(module)) for module in (reason, *MODULES)]
    return {part.name: part for tree in trees for part in tree.body if isinstance(part, ast.ClassDef)}
