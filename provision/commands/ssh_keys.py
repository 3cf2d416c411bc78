"""SSH public keys that nodes send: checked before they enter any known_hosts or authorized_keys.

The role container_ssh has this file as its filter plugin, by a link, so that plain Ansible applies the same rules. It
imports nothing but the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_KEY = re.compile(r"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI[A-P][A-Za-z0-9+/]{42}\Z")
"""An Ed25519 key, the only algorithm of the keys that containers make: a header that repeats the algorithm's name, and
32 bytes. Their base64 text has one form only."""


def public_key_problem(value: object) -> str:
    """Return why a value is not exactly one Ed25519 public key, ``ssh-ed25519 BASE64``; empty when it is.

    The reason contains nothing of the value, which comes from a node.
    """
    if not isinstance(value, str) or not value:
        return "there is no key"
    if not _KEY.match(value):
        return "it is not one line `ssh-ed25519 KEY` with a key of 68 base64 characters, without options and comment"
    return ""


def shared_keys(keys: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the nodes that send the same key as another node -> all nodes that send it, sorted."""
    owners: dict[str, list[str]] = {}
    for node in sorted(keys):
        owners.setdefault(keys[node], []).append(node)
    return {node: names for names in owners.values() if len(names) > 1 for node in names}


def refused_nodes(offers: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return node -> reason, for all nodes whose keys must not be handed to other nodes.

    Args:
        offers: node -> ``host_key``, ``client_key`` and ``address``; the keys as the node sent them.
    """
    refused: dict[str, str] = {}
    for node, offer in offers.items():
        problems = {title: public_key_problem(offer.get(kind)) for kind, title in _KINDS.items()}
        title = next((title for title, problem in problems.items() if problem), "")
        if title:
            refused[node] = f"its {title} is invalid: {problems[title]}"
        elif not offer.get("address"):
            refused[node] = "its data address is unknown or refused"
    valid = {node: offer for node, offer in offers.items() if node not in refused}
    for kind, title in _KINDS.items():
        for node, names in shared_keys({node: offer[kind] for node, offer in valid.items()}).items():
            refused[node] = f"{' and '.join(names)} send the same {title}"
    return refused


def accepted_offers(offers: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    """Return the offers without those of `refused_nodes`."""
    refused = refused_nodes(offers)
    return {node: offer for node, offer in offers.items() if node not in refused}


def recorded_lines(
    lines: Mapping[str, str], nodes: Sequence[str], addresses: Mapping[str, str], *, hosts: bool
) -> dict[str, str]:
    """Return the lines of a known_hosts or authorized_keys file that may stay: one key of one node, and no more.

    Args:
        lines: node -> its line. Earlier versions wrote lines with what the node itself had sent.
        nodes: all nodes of the inventory.
        addresses: node -> data address.
        hosts: whether these are lines of known_hosts; a line that names or addresses another node is dropped.
    """
    owner = {address: node for node, address in addresses.items()} | {node: node for node in nodes}
    good: dict[str, str] = {}
    for node, line in lines.items():
        names, _, rest = line.partition(" ") if hosts else ("", "", line)
        key, _, comment = rest.rpartition(" ")
        plain = [_HOST_AND_PORT.sub(r"\1", name) for name in names.split(",")] if hosts else []
        foreign = any(not name or not _HOST.match(name) or owner.get(name, node) != node for name in plain)
        if comment == node and not foreign and not public_key_problem(key):
            good[node] = line
    return good


_KINDS = {"host_key": "public host key", "client_key": "public client key"}
_HOST_AND_PORT = re.compile(r"^\[(.*)\]:[0-9]+\Z")
_HOST = re.compile(r"[A-Za-z0-9_.:-]+\Z")


def _offers(
    hostvars: Mapping[str, Mapping[str, Any]], nodes: Iterable[str], addresses: Mapping[str, str], *, check_mode: bool
) -> dict[str, dict[str, str]]:
    """Return node -> what it sends of itself, for the nodes whose keys were made in this run."""
    keys = {node: hostvars[node].get("__container_ssh_keys") or {} for node in nodes}
    return {
        node: {**{kind: own.get(kind) or "" for kind in _KINDS}, "address": addresses.get(node) or ""}
        for node, own in keys.items()
        if own.get("ready") and (not check_mode or all(own.get(kind) for kind in _KINDS))
    }


class FilterModule:
    """The filters of the role container_ssh."""

    def filters(self) -> dict[str, object]:
        """Return the filters by name."""
        return {
            "container_ssh_accepted": accepted_offers,
            "container_ssh_offers": _offers,
            "container_ssh_recorded": recorded_lines,
            "container_ssh_refused": refused_nodes,
        }
