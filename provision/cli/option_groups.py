"""Groups of command line options: a verb takes a dataclass, and each of its fields is an option.

Typer reads the parameters of a function from its signature, so the decorator gives the verb a signature with the
fields in place of the dataclass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def with_option_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Add an option to `function` for each field of its dataclass parameters."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, tuple[Any, list[str]]] = {}
    parameters: list[Parameter] = []
    for one in signature(function).parameters.values():
        if not dataclasses.is_dataclass(kind := hints[one.name]):
            parameters.append(one.replace(kind=Parameter.KEYWORD_ONLY, annotation=kind))
            continue
        options = _options(kind)
        groups[one.name] = kind, [option.name for option in options]
        parameters += options

    def verb(*arguments: Any, **given: Any) -> None:
        for name, (kind, options) in groups.items():
            given[name] = kind(**{option: given.pop(option) for option in options if option in given})
        function(*arguments, **given)

    verb.__name__, verb.__qualname__, verb.__doc__ = function.__name__, function.__qualname__, function.__doc__
    verb.__module__ = function.__module__
    verb.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    verb.__annotations__ = {one.name: one.annotation for one in parameters}
    return verb


def _options(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]
