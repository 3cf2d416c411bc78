"""Render reasons with the catalogues of all packages.

A template contains parameters in braces. A list is joined by commas; ``{names:;}`` joins it by semicolons,
``{names:and}`` by "and", ``{names:few}`` shows the first four, ``{names:names}`` the first six names.
``{names:short}`` is node names with ranges, ``{names:limit}`` the same as a value of --limit. ``{n:span}`` is a length
of time, ``{n:times x}`` a count. ``{parts:remedy}`` contains the remedies of parts of the message. A part in square
brackets is omitted if one of its parameters is empty; without parameters, the brackets are text. ``{node}`` is the
node, or the host pattern of all nodes, that the reason is about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from string import Formatter
from typing import Any, TypeVar

from provision.errors import ProvisionError
from provision.model.reason import NO_REASON, Reason, Value, Wording
from provision.report.node_names import as_limit, in_short

Error = TypeVar("Error", bound=ProvisionError)

CURRENT_NODE = "node"
"""The field that is no parameter of the reason."""
_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
_FEW = 4
_NAMES = 6
_SPANS = (("days", 86400), ("hours", 3600), ("minutes", 60))


@lru_cache(maxsize=1)
def catalogue() -> Mapping[str, Wording]:
    """Return the wording of every code."""
    from provision.batch.export.reasons import REASONS as EXPORTS
    from provision.batch.reasons import REASONS as JOBS
    from provision.batch.slurm.reasons import REASONS as SLURM
    from provision.checks.reasons import REASONS as CHECKS
    from provision.components import COMPONENTS
    from provision.gdr.reasons import REASONS as GPUDIRECT
    from provision.planning.reasons import REASONS as PLANS
    from provision.stack.reasons import REASONS as STACKS
    from provision.topology.reasons import REASONS as PLACEMENTS

    components = (component.reasons for component in COMPONENTS.values())
    parts = [CHECKS, PLANS, PLACEMENTS, JOBS, SLURM, EXPORTS, GPUDIRECT, STACKS, *components]
    return {code: wording for part in parts for code, wording in part.items()}


def message(reason: Reason, node: str = "") -> str:
    """Return the message of a reason; empty for `NO_REASON`.

    Raises:
        KeyError: the code is in no catalogue, or the reason lacks a parameter of the template.
    """
    return "" if reason == NO_REASON else _rendered(catalogue()[reason.code].message, reason.params, node)


def messages(reasons: Sequence[Reason], node: str = "") -> list[str]:
    """Return the messages of several reasons, each once."""
    return list(dict.fromkeys(message(reason, node) for reason in reasons))


def remedy(reason: Reason, node: str = "") -> str:
    """Return what to do; empty where nothing has to be done."""
    return _rendered(catalogue()[reason.code].remedy, reason.params, node)


def error_of(kind: type[Error], reason: Reason, *, node: str | None = None, output: str = "") -> Error:
    """Return an error with the message, remedy, code and parameters of a reason."""
    return kind(
        message(reason, node or ""),
        node=node,
        remedy=remedy(reason, node or "") or None,
        output=output,
        reason=reason,
    )


def names_node(reason: Reason) -> bool:
    """Return whether the remedy contains the node."""
    return CURRENT_NODE in fields(catalogue()[reason.code].remedy)


def fields(template: str) -> set[str]:
    """Return the parameters of a template."""
    return {name for _, name, _, _ in Formatter().parse(_OPTIONAL.sub(r"\1", template)) if name}


def _rendered(template: str, params: Mapping[str, Value], node: str) -> str:
    formatter = _Formatter(node)
    values = {**params, CURRENT_NODE: node}

    def optional(match: re.Match[str]) -> str:
        names = fields(match[1])
        if not names:
            return match[0]
        return match[1] if all(values[name] not in (None, "", ()) for name in names) else ""

    return formatter.vformat(_OPTIONAL.sub(optional, template), (), values)


class _Formatter(Formatter):
    def __init__(self, node: str) -> None:
        self._node = node

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "remedy":
            parts = value if isinstance(value, tuple) else (value,)
            return " ".join(dict.fromkeys(remedy(part, self._node) for part in parts))
        if isinstance(value, tuple):
            return _joined([self._text(part) for part in value], format_spec)
        if format_spec == "span":
            return _span(value)
        if format_spec.startswith("times "):
            noun = format_spec.removeprefix("times ")
            return f"{value} {noun}{'s' * (value != 1)}"
        return self._text(value) if isinstance(value, Reason) else str(super().format_field(value, format_spec))

    def _text(self, value: Value) -> str:
        return message(value, self._node) if isinstance(value, Reason) else str(value)


def _joined(texts: Sequence[str], how: str) -> str:
    match how:
        case "few":
            more = f"; and {len(texts) - _FEW} more" if len(texts) > _FEW else ""
            return "; ".join(texts[:_FEW]) + more
        case "names":
            more = f" and {len(texts) - _NAMES} more" if len(texts) > _NAMES else ""
            return ", ".join(texts[:_NAMES]) + more
        case "short" | "limit":
            return (in_short if how == "short" else as_limit)(texts)
        case "and" | "or":
            return f" {how} ".join(texts)
        case "," | " ":
            return how.join(texts)
        case _:
            return f"{how or ','} ".join(texts)


def _span(seconds: float) -> str:
    """Return a length of time, e.g. ``3 days``."""
    for name, length in _SPANS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {name}"
    return f"{max(seconds, 0):.0f} seconds"
