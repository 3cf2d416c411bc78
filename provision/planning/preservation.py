"""Pre-existing configuration of a node: roles preserve it unless the inventory says otherwise.

It is expressed in the roles' own variables. A plan uses them in place of the roles' defaults, an apply passes them to
the roles, which record them in their receipts, and ``adopt`` writes them into the inventory. The values come from
nodes, so only values of a valid form are used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from provision.components import COMPONENTS
from provision.components.base import PreservedSettings
from provision.facts import NodeFacts, Unknown
from provision.model import Node


def preserved_variables(node: Node, facts: NodeFacts) -> dict[str, dict[str, Any]]:
    """Return by role the variables that preserve the pre-existing configuration of the node."""
    by_role: dict[str, dict[str, Any]] = {}
    for role, settings in _preserving():
        recorded = _recorded(role, facts)
        variables = settings.variables(node, facts) if recorded is None else recorded
        valid = {
            name: value
            for name, value in variables.items()
            if name not in node.variables and _is_valid(settings, name, value)
        }
        if valid:
            by_role[role] = valid
    return by_role


def unreadable_facts(node: Node, facts: NodeFacts) -> str | None:
    """Return why pre-existing configuration cannot be recognised; None where it can, or a receipt records it.

    Otherwise the roles' defaults would replace it.
    """
    for role, settings in _preserving():
        if node.variables.get(f"{role}_enabled") is False:
            continue
        values = {name: getattr(facts, name) for name in settings.facts}
        reasons = [f"{name}: {value.reason}" for name, value in values.items() if isinstance(value, Unknown)]
        if reasons and _recorded(role, facts) is None:
            return "; ".join(reasons)
    return None


def describe_preserved(facts: NodeFacts, roles: Iterable[str]) -> tuple[str, ...]:
    """Return a phrase for each of the `roles` that describes what it preserves on the node."""
    settings = dict(_preserving())
    return tuple(settings[role].describe(facts) for role in roles)


def _preserving() -> Iterator[tuple[str, PreservedSettings]]:
    for role, component in COMPONENTS.items():
        if component.preserves:
            yield role, component.preserves


def _recorded(role: str, facts: NodeFacts) -> Mapping[str, Any] | None:
    """Return what the role's last run preserved; None without a valid receipt."""
    if isinstance(facts.receipts, Unknown) or isinstance(facts.managed, Unknown):
        return {}
    receipt = facts.receipts.get(role)
    if receipt is None or receipt.error or not facts.managed.sealed.get(role):
        return None
    inputs = receipt.content.get("inputs")
    recorded = inputs.get("kept") if isinstance(inputs, Mapping) else None
    return recorded if isinstance(recorded, Mapping) else {}


def _is_valid(settings: PreservedSettings, name: str, value: Any) -> bool:
    """Return whether the role preserves the variable, and the value is valid for it.

    Ansible evaluates templates in these values, so a value with a template is never valid.
    """
    form = settings.forms.get(name)
    return form is not None and form(value) and _is_plain(value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not isinstance(value, str) or re.fullmatch(r"[A-Za-z0-9._:/+@-]*", value) is not None
