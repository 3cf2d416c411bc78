"""Reasons in assertions: codes and values, without wording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from provision.model.reason import Reason, Value, reason

__all__ = ["params_of", "parts", "plain", "shown", "shown_document"]


def plain(text: str, advice: str = "") -> Reason:
    """Return a reason whose message and remedy are these texts, for tests of reports."""
    return reason("reload.unreachable", cause=text, advice=advice)


def shown(reason: Reason) -> str:
    """Return the code and the values of a reason, e.g. ``unit.state: docker.service paused``."""
    values = " ".join(part for value in reason.params.values() for part in _texts(value))
    return f"{reason.code}: {values}".rstrip(": ")


def shown_document(document: Mapping[str, Any]) -> str:
    """Return the code and the values of a reason in a JSON document, as `shown` does."""
    return f"{document['code']}: {' '.join(_values(document['params'].values()))}".rstrip(": ")


def parts(reason: Reason) -> Iterator[Reason]:
    """Yield a reason and all reasons among its parameters."""
    yield reason
    for value in reason.params.values():
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Reason):
                yield from parts(one)


def params_of(reason: Reason, code: str) -> dict[str, Any]:
    """Return the parameters of the part of a reason with this code."""
    (params,) = [dict(part.params) for part in parts(reason) if part.code == code]
    return params


def _values(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Mapping):
            yield str(value["code"])
            yield from _values(value["params"].values())
        elif isinstance(value, list):
            yield from _values(value)
        elif value not in (None, ""):
            yield str(value)


def _texts(value: Value) -> Iterator[str]:
    if isinstance(value, Reason):
        yield value.code
        value = tuple(value.params.values())
    if isinstance(value, tuple):
        for part in value:
            yield from _texts(part)
    elif value not in (None, ""):
        yield str(value)
