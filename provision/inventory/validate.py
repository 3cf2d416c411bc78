"""Validate an inventory before any connection."""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any

from provision.inventory.connection import CONNECTION_KEYS
from provision.inventory.listing import NODE_GROUP, Listing
from provision.inventory.problems import Problem
from provision.inventory.specs import Option, Specs
from provision.inventory.templates import has_template
from provision.model import Connection

_TRUTH = frozenset({"true", "false", "yes", "no", "on", "off", "1", "0", "y", "n", "t", "f"})
_CLOSE = 0.85
_ANSIBLE_CLOSE = 0.9
_SSH_PORT = 22
_LONGEST_NAME = 240
"""With a suffix it must be a file name."""


def cluster_problems(listing: Listing, connections: Mapping[str, Connection]) -> Iterator[Problem]:
    """Yield problems of the inventory as a whole: no nodes, empty groups, duplicate addresses, invalid networks."""
    for group in listing.empty_groups:
        yield Problem(None, None, f"the group {group} has no hosts")
    if not listing.nodes and NODE_GROUP not in listing.empty_groups:
        yield Problem(None, None, "the inventory has no hosts")
    yield from _names(listing)
    yield from _same_address(connections)
    yield from _networks(listing)
    for name in listing.nodes[:1]:
        head = listing.hosts[name].get("cluster_head")
        if isinstance(head, str) and head and not has_template(head) and head not in listing.nodes:
            close = difflib.get_close_matches(head, listing.nodes, 1)
            yield Problem(name, "cluster_head", f"'{head}' is not a node" + _meant(close))


def variable_problems(listing: Listing, specs: Specs) -> Iterator[Problem]:
    """Yield unknown variables with one of the roles' prefixes, and values of the wrong type."""
    for host in listing.nodes:
        for key, value in listing.hosts[host].items():
            option = specs.options.get(key)
            if option is not None:
                yield from (Problem(host, key, text) for text in type_problems(option, value))
            elif key.startswith(specs.prefixes):
                close = difflib.get_close_matches(key, specs.options, 1, 0.6)
                yield Problem(host, key, "unknown variable: no role has it" + _meant(close))


def doubtful_names(listing: Listing, specs: Specs) -> Iterator[Problem]:
    """Yield the user's own variables whose names look like typing errors of ours or Ansible's."""
    for host in listing.nodes:
        for key in listing.hosts[host]:
            if key in specs.options or key in CONNECTION_KEYS or key.startswith(specs.prefixes):
                continue
            ansible = key.startswith("ansible_")
            known, cutoff = (CONNECTION_KEYS, _ANSIBLE_CLOSE) if ansible else (specs.options, _CLOSE)
            close = difflib.get_close_matches(key, known, 1, cutoff)
            if close and not (ansible and close[0].startswith(key)):
                yield Problem(host, key, f"unknown variable{_meant(close)}")


def type_problems(option: Option, value: Any, path: str = "") -> Iterator[str]:
    """Yield the reasons why `value` is invalid for `option`; templates and encrypted values are not validated."""
    if has_template(value) and not isinstance(value, dict | list):
        return
    where = f"{path}: " if path else ""
    if value is None:
        if option.default is not None or option.required:
            yield f"{where}has no value; set one or remove the line"
        return
    if isinstance(value, Mapping) and "__ansible_vault" in value:
        return
    if not _fits(option.type, value):
        yield f"{where}must be {_called(option.type)}, not {_show(value)}"
        return
    if option.choices and option.type != "list" and value not in option.choices:
        yield f"{where}must be one of {', '.join(map(str, option.choices))}, not {_show(value)}"
    if option.type == "list":
        yield from _list_problems(option, value, path)
    elif option.type == "dict" and option.options:
        yield from _dict_problems(option, value, path)


def _list_problems(option: Option, value: list[Any], path: str) -> Iterator[str]:
    element = Option(option.name, option.role, option.elements or "raw", None, option.choices, options=option.options)
    for number, item in enumerate(value, start=1):
        here = f"{path + ', ' if path else ''}entry {number}"
        if item is None:
            yield f"{here}: is empty"
        else:
            yield from type_problems(element, item, here)


def _dict_problems(option: Option, value: Mapping[str, Any], path: str) -> Iterator[str]:
    where = f"{path}: " if path else ""
    for key, item in value.items():
        known = option.options.get(str(key))
        if known is None:
            yield f"{where}'{key}' is an unknown key" + _meant(difflib.get_close_matches(str(key), option.options, 1))
        else:
            yield from type_problems(known, item, f"{path + ', ' if path else ''}{key}")
    for key, known in option.options.items():
        if known.required and key not in value:
            yield f"{where}'{key}' is missing"


def _fits(kind: str, value: Any) -> bool:
    if kind == "bool":
        return isinstance(value, bool) or str(value).lower() in _TRUTH
    if kind in ("int", "float"):
        return _is_number(value, whole=kind == "int")
    if kind in ("str", "path"):
        return isinstance(value, str | int | float) and not isinstance(value, bool)
    if kind == "list":
        return isinstance(value, list)
    return isinstance(value, dict) if kind == "dict" else True


def _is_number(value: Any, *, whole: bool) -> bool:
    if isinstance(value, bool):
        return False
    try:
        number = float(str(value))
    except ValueError:
        return False
    return number.is_integer() or not whole


def _called(kind: str) -> str:
    names = {
        "bool": "true or false",
        "int": "a whole number",
        "float": "a number",
        "list": "a list",
        "dict": "a mapping",
    }
    return names.get(kind, "text")


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - length of a line


def _meant(close: list[str]) -> str:
    return f"; did you mean {close[0]}?" if close else ""


def _names(listing: Listing) -> Iterator[Problem]:
    """Validate names of nodes, which become file names here; an inventory plugin can return any name."""
    for name in listing.nodes:
        if "/" in name or name.startswith(".") or not name.isprintable() or len(name) > _LONGEST_NAME:
            yield Problem(
                None, None, f"{_show(name)} is not a valid name of a node: it contains a slash or similar characters"
            )


def _same_address(connections: Mapping[str, Connection]) -> Iterator[Problem]:
    seen: dict[tuple[str, int, str], str] = {}
    for name, connection in connections.items():
        host = "the controller" if connection.local else _normal(connection.host)
        place = (host, 0 if connection.local else connection.port or _SSH_PORT, connection.jump or "")
        if place in seen:
            where = host if place[1] in (0, _SSH_PORT) else f"{host} port {place[1]}"
            key = None if connection.local else "ansible_host"
            yield Problem(name, key, f"{seen[place]} and {name} have the same address, {where}")
        seen.setdefault(place, name)


def _networks(listing: Listing) -> Iterator[Problem]:
    addresses: dict[str, str] = {}
    for name in listing.nodes:
        variables = listing.hosts[name]
        for network in variables.get("cluster_data_networks") or ():
            if isinstance(network, str) and not has_template(network) and not _is_network(network):
                yield Problem(name, "cluster_data_networks", f"'{network}' is not a network such as 10.0.0.0/24")
        address = variables.get("cluster_data_address")
        if not isinstance(address, str) or not address or has_template(address):
            continue
        if not _is_address(address):
            yield Problem(name, "cluster_data_address", f"'{address}' is not an IP address")
        elif _normal(address) in addresses:
            other = addresses[_normal(address)]
            yield Problem(name, "cluster_data_address", f"{other} and {name} have the same data address, {address}")
        addresses.setdefault(_normal(address), name)


def _normal(address: str) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address.lower().rstrip(".")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return "/" in text
