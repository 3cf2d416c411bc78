"""Operators and submitters of an inventory (``cluster_operators``, ``cluster_submitters``), parsed strictly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.errors import InventoryError
from provision.inventory.people_entries import VARIABLES, entry_problems
from provision.inventory.people_entries import people as entries_of
from provision.inventory.problems import Problem
from provision.inventory.templates import has_template
from provision.model import Cluster
from provision.model.people import Person

_ACCOUNT = "cluster_agent_account"


def people(cluster: Cluster) -> dict[str, Person]:
    """Return name -> person for all people in the inventory.

    Raises:
        InventoryError: An entry is invalid. `load` rejects such an inventory.
    """
    try:
        entries = entries_of(cluster.nodes[0].variables) if cluster.nodes else []
    except ValueError as error:
        raise InventoryError(str(error)) from error
    return {
        one["name"]: Person(
            one["name"], one["key"], "submitter" if one["role"] == "submitter" else "operator", one["user"]
        )
        for one in entries
    }


def people_problems(names: Sequence[str], variables: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield problems with the people of an inventory, who must be the same on all nodes."""
    first: Mapping[str, Any] = {}
    judged: list[tuple[Any, ...]] = []
    for number, name in enumerate(names):
        own = variables[name]
        values = tuple(own.get(variable) for variable in (*VARIABLES, _ACCOUNT))
        if number == 0:
            first = own
        for variable in VARIABLES:
            if own.get(variable) != first.get(variable):
                text = f"differs from {names[0]}; set it for all nodes"
                yield Problem(name, variable, text)
        if values in judged:
            continue
        judged.append(values)
        unknown = [variable for variable in (*VARIABLES, _ACCOUNT) if has_template(own.get(variable))]
        for variable in unknown:
            yield Problem(name, variable, "its Jinja cannot be rendered on the controller, or it is encrypted")
        rest = {variable: own.get(variable) for variable in (*VARIABLES, _ACCOUNT) if variable not in unknown}
        yield from (Problem(name, variable, text) for variable, text in entry_problems(rest))
