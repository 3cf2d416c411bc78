"""The role platform: what kind of node this is, package repositories, and the packages of all roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from provision.commands.package_repositories import repository_files, repository_paths
from provision.components.base import Component, Repository, Setting, Variables
from provision.components.common import is_on, items, key_problems, package_manager
from provision.facts import NodeFacts
from provision.model import PreflightCode

_REPOSITORIES = "platform_extra_repositories"
_ADDRESS = ("cluster_data_address", "cluster_data_networks")


def _settings(variables: Variables, facts: NodeFacts) -> Iterator[Setting]:
    for number, item in enumerate(items(variables, _REPOSITORIES), start=1):
        where = f"{_REPOSITORIES}, entry {number}, key"
        yield from key_problems(where, str(item.get("key") or ""), f"the repository {item.get('name')}")
        try:
            repository_files({"key": "", **item, "uris": _words(item, "uris")}, package_manager(facts))
        except ValueError as error:
            remedy = "Use one user and password without spaces and $, and leave gpgcheck or repo_gpgcheck on."
            yield PreflightCode.VARIABLE_INVALID, f"{_REPOSITORIES}, entry {number}, uris", str(error), remedy


def _repositories(variables: Variables, _: Variables) -> Iterator[Repository]:
    for item in items(variables, _REPOSITORIES):
        uris, suites, components = (_words(item, name) for name in ("uris", "suites", "components"))
        key = str(item.get("key") or "")
        checks = {name: is_on(item, name) for name in ("gpgcheck", "repo_gpgcheck") if name in item}
        yield Repository(str(item.get("name")), uris, suites, components, key, _REPOSITORIES, "platform", **checks)


def _words(item: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = item.get(name)
    words = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(str(word) for word in words if word)


def _files(variables: Variables, facts: NodeFacts) -> Iterator[str]:
    for item in items(variables, _REPOSITORIES):
        has_login = any("@" in uri.partition("//")[2].partition("/")[0] for uri in _words(item, "uris"))
        yield from repository_paths(str(item.get("name")), package_manager(facts), has_login=has_login)


COMPONENT = Component(
    role="platform",
    shared=True,
    derived_variables=dict.fromkeys(("data_address", "data_interface", "platform_data_addresses"), _ADDRESS),
    common_variables=frozenset({"platform_package_sets"}),
    settings=_settings,
    files=_files,
    repositories=_repositories,
)
