"""Reasons: what was decided or went wrong, as a code with parameters.

Logic, JSON and tests use codes. Each package has a catalogue of the wording (``reasons.py``), and
``provision/report/reasons.py`` renders a reason with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict, Union

Value = Union[str, int, float, None, "Reason", tuple["Value", ...]]
"""A parameter. A reason as a parameter is a part of a message."""


class ReasonDocument(TypedDict):
    """A reason in a JSON document."""

    code: str
    """The code, for scripts; empty without a reason."""
    params: dict[str, Any]
    """The values that the message contains, by name."""


@dataclass(frozen=True)
class Reason:
    """A code such as ``docker_engine.service.not_installed``, and the values that its message contains."""

    code: str
    params: Mapping[str, Value] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.code, tuple(self.params.items())))

    def as_document(self) -> ReasonDocument:
        """Return code and parameters for JSON."""
        return {"code": self.code, "params": {name: _plain(value) for name, value in self.params.items()}}


NO_REASON = Reason("")


class Wording(NamedTuple):
    """The texts of a code: templates with its parameters in braces."""

    message: str
    """What is the case. `provision/report/reasons.py` describes the formats and optional parts."""
    remedy: str = ""
    """What to do, as an imperative."""


def reason(code: str, /, **params: Value | Iterable[Value]) -> Reason:
    """Return a reason; lists and other iterables become tuples."""
    return Reason(code, {name: _frozen(value) for name, value in params.items()})


def _frozen(value: Value | Iterable[Value]) -> Value:
    if value is None or isinstance(value, str | int | float | Reason):
        return value
    return tuple(value)


def _plain(value: Value) -> Any:
    if isinstance(value, Reason):
        return value.as_document()
    return [_plain(part) for part in value] if isinstance(value, tuple) else value
