"""The role platform: what kind of node this is, package repositories, and the packages of all roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from provision.commands.apt_sources import login_lines
from provision.components.base import Component, Repository, Setting, Variables
from provision.components.common import SOURCES, items, key_problems
from provision.facts import NodeFacts
from provision.model import PreflightCode

_REPOSITORIES = "platform_extra_repositories"
_ADDRESS = ("cluster_data_address", "cluster_data_networks")


def _settings(variables: Variables, _: NodeFacts) -> Iterator[Setting]:
    for number, item in enumerate(items(variables, _REPOSITORIES), start=1):
        where = f"{_REPOSITORIES}, entry {number}, key"
        yield from key_problems(where, str(item.get("key") or ""), f"the repository {item.get('name')}")
        try:
            login_lines(_words(item, "uris"))
        except ValueError as error:
            remedy = "Use a user and a password without spaces."
            yield PreflightCode.VARIABLE_INVALID, f"{_REPOSITORIES}, entry {number}, uris", str(error), remedy


def _repositories(variables: Variables, _: Variables) -> Iterator[Repository]:
    for item in items(variables, _REPOSITORIES):
        uris, suites, components = (_words(item, name) for name in ("uris", "suites", "components"))
        key = str(item.get("key") or "")
        yield Repository(str(item.get("name")), uris, suites, components, key, _REPOSITORIES, "platform")


def _words(item: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = item.get(name)
    words = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(str(word) for word in words if word)


def _files(variables: Variables, _: NodeFacts) -> Iterator[str]:
    for item in items(variables, _REPOSITORIES):
        yield SOURCES.format(item.get("name"))
        if any("@" in uri.partition("//")[2].partition("/")[0] for uri in _words(item, "uris")):
            yield f"/etc/apt/auth.conf.d/provision-{item.get('name')}.conf"


COMPONENT = Component(
    role="platform",
    shared=True,
    derived_variables=dict.fromkeys(("data_address", "data_interface", "platform_data_addresses"), _ADDRESS),
    common_variables=frozenset({"platform_package_sets"}),
    settings=_settings,
    files=_files,
    repositories=_repositories,
)
