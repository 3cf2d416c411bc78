"""Parse the fields of a job's spec, from flags and from spec files."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from provision.batch.durations import duration
from provision.batch.names import KINDS
from provision.model.job import CodeSource, JobSpec

Given = str | Sequence[str] | Mapping[str, str]
"""The text of a field: one value, several values, or names with values."""

FIELDS = tuple(item.name for item in dataclasses.fields(JobSpec))
PULL_SECRET = "image_pull_secret"  # noqa: S105 # nosec B105 # a key, not a secret
"""A key of spec files that is not a field of JobSpec: the names of the credentials are sent beside the spec."""
_TRUE, _FALSE = frozenset({"true", "yes", "on", "1", "t"}), frozenset({"false", "no", "off", "0", "f"})
_WHOLE_LINES = frozenset({"command", "mounts", "config_files"})
"""Lists whose items may contain commas."""
_SIZE = re.compile(r"(\d+)([kmgt]?)(?:i?b?)", re.IGNORECASE)


def switch(text: str) -> bool:
    """Return true or false.

    Raises:
        ValueError: neither.
    """
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(f"{text!r} is neither true nor false")
    return word in _TRUE


@cache
def form(field: str) -> str:
    """Return the format of a field of JobSpec: text, whole, switch, duration, words, numbers, pairs, ..."""
    if field in {"kind", "data", "share_memory", "sync", "pull", "clean_task_policy"}:
        return field
    if field == PULL_SECRET:
        return "words"
    hint: Any = typing.get_type_hints(JobSpec)[field]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {types.UnionType, typing.Union}:
        return "text"
    if origin is tuple:
        return "numbers" if arguments[0] is int else "words"
    if origin is not None:
        return "pairs"
    return {int: "whole", bool: "switch", float: "duration"}.get(hint, "text")


def field_value(field: str, given: Given) -> Any:
    """Return the value of a field of JobSpec.

    Raises:
        ValueError: invalid, with the valid values.
    """
    kind = form(field)
    if kind == "pairs":
        return _pairs(given)
    if kind == "data":
        return _data(given)
    if kind == "words":
        return _words(given, whole=field in _WHOLE_LINES)
    if kind == "numbers":
        return tuple(_whole(word) for word in _words(given, whole=False))
    if kind == "sync":
        return _sync(given)
    if not isinstance(given, str):
        raise ValueError("expected one value, not several")  # noqa: TRY004 - of a user, not of a type
    readers = {
        "whole": _whole,
        "switch": switch,
        "duration": duration,
        "kind": _kind,
        "share_memory": _size,
        "pull": lambda text: "missing" if text.lower() == "ifnotpresent" else text.lower(),
        "clean_task_policy": str.capitalize,
    }
    return readers[kind](given) if kind in readers else given


def _whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,9}", text.strip()):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _kind(text: str) -> Any:
    if text.lower() not in KINDS:
        raise ValueError(f"unknown kind of job {text!r}; choose mpi, pytorch or run")
    return KINDS[text.lower()]


def _size(text: str) -> str:
    """Return a size as docker writes it; both 2Gi and 2g are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise ValueError(f"invalid size {text!r}; write 2Gi, 32g or 512m")
    return match[1] + (match[2].lower() or "b")


def _words(given: Given, *, whole: bool) -> tuple[str, ...]:
    if isinstance(given, Mapping):
        raise ValueError("expected a list, not names with values")  # noqa: TRY004
    items = [given] if isinstance(given, str) else list(given)
    return tuple(items) if whole else tuple(word.strip() for item in items for word in item.split(",") if word.strip())


def _pairs(given: Given) -> dict[str, str]:
    if isinstance(given, Mapping):
        return dict(given)
    pairs: dict[str, str] = {}
    for item in [given] if isinstance(given, str) else given:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ValueError(f"{item!r} is not NAME=VALUE")
        pairs[name] = value
    return pairs


def _data(given: Given) -> tuple[tuple[str, str], ...]:
    if isinstance(given, Mapping):
        return tuple(given.items())
    volumes = []
    for item in [given] if isinstance(given, str) else given:
        name, colon, target = item.partition(":")
        if not colon or not name:
            raise ValueError(f"{item!r} is not NAME:/path/in/the/container")
        volumes.append((name, target))
    return tuple(volumes)


def _sync(given: Given) -> CodeSource:
    if not isinstance(given, Mapping):
        raise ValueError("expected the keys mode and source")  # noqa: TRY004
    known = {"mode", "source", "revision"}
    odd = [key for key in given if key not in known]
    if odd:
        raise ValueError(f"unknown key {odd[0]!r}; choose one of {', '.join(sorted(known))}")
    return CodeSource(given.get("mode", ""), given.get("source", ""), given.get("revision", ""))
