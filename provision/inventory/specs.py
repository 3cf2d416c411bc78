"""Variables of the roles, from every role's meta/argument_specs.yml, with the values of its defaults/main.yml."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.inventory.role_files import argument_specs, defaults


@dataclass(frozen=True)
class Option:
    """One variable of a role, from its argument_specs."""

    name: str
    role: str
    type: str = "str"
    elements: str | None = None
    choices: tuple[Any, ...] = ()
    default: Any = None
    description: str = ""
    options: Mapping[str, Option] = field(default_factory=dict)
    """Keys of a dict, or of each dict in a list; empty if any key is allowed."""
    required: bool = False


@dataclass(frozen=True)
class Specs:
    """All variables of all roles."""

    options: Mapping[str, Option]
    roles: tuple[str, ...]

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Prefixes of the roles' variables."""
        return (*(f"{role}_" for role in self.roles), "cluster_", "platform_")


@functools.lru_cache(maxsize=1)
def read_specs(roles: Path) -> Specs:
    """Read the argument_specs of every role under `roles`. Cached, because they are part of the program."""
    role_options, values = argument_specs(roles), defaults(roles)
    options = {
        name: _option(name, role, {"default": values.get(name), **raw})
        for role, own in role_options.items()
        for name, raw in own.items()
    }
    return Specs(options, tuple(role_options))


def as_type(option: Option, value: Any) -> Any:
    """Return `value` in the type that the roles expect: INI files and templates provide text for numbers."""
    if option.type == "int" and isinstance(value, str) and value.strip().lstrip("-").isdigit():
        return int(value)
    if option.type == "float" and isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value.strip()):
        return float(value)
    if option.type == "bool" and not isinstance(value, bool) and isinstance(value, str | int):
        return _TRUTH.get(str(value).strip().lower(), value)
    return value


_TRUTH = dict.fromkeys(("true", "yes", "on", "1", "y", "t"), True) | dict.fromkeys(
    ("false", "no", "off", "0", "n", "f"), False
)


def _option(name: str, role: str, raw: Mapping[str, Any]) -> Option:
    description = raw.get("description", "")
    return Option(
        name,
        role,
        type=str(raw.get("type", "str")),
        elements=raw.get("elements"),
        choices=tuple(raw.get("choices") or ()),
        default=raw.get("default"),
        description=" ".join(description) if isinstance(description, list) else str(description),
        options={str(key): _option(str(key), role, value or {}) for key, value in (raw.get("options") or {}).items()},
        required=bool(raw.get("required", False)),
    )
