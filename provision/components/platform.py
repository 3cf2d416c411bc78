"""The role platform: what kind of node this is, package repositories, and the packages of all roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from provision.commands.package_repositories import PROXIES, repository_files, repository_paths
from provision.components.base import Component, Repository, Setting, Variables
from provision.components.check import Check, Scene, Verdict, known, passed, warn
from provision.components.common import is_on, items, key_problems, package_manager
from provision.components.package_cache import cache_settings
from provision.facts import NodeFacts
from provision.model import PreflightCode
from provision.model.reason import Wording

_REPOSITORIES = "platform_extra_repositories"
_APPLY = "Run: provision apply"
_RESCUE_SECONDS = "platform_rescue_seconds"
_LEAST_SECONDS, _MOST_SECONDS = 20, 3600
_REVERTED = {
    "limit": "platform.rescue.limit",
    "next": "platform.rescue.limit",
    "boot": "platform.rescue.boot",
    "late": "platform.rescue.late",
    "failed": "platform.rescue.failed",
}
"""Cause in the record of the node -> reason. Its timer, or else the next change, reverts a change after its limit."""
_ADDRESS = ("cluster_data_address", "cluster_data_networks")


def _rescue(scene: Scene) -> Verdict:
    last = known(scene.facts.rescue)
    if not last.state:
        return passed("platform.rescue.none")
    if last.state != "reverted":
        return passed("platform.rescue.ok", what=last.what)
    if not last.is_complete:
        return warn("platform.rescue.not_restored", what=last.what, files=last.files)
    code = _REVERTED.get(last.cause, "platform.rescue.reverted")
    return warn(code, what=last.what, seconds=last.seconds, files=last.files)


def _settings(variables: Variables, facts: NodeFacts) -> Iterator[Setting]:
    seconds = variables.get(_RESCUE_SECONDS)
    if isinstance(seconds, int) and seconds and not _LEAST_SECONDS <= seconds <= _MOST_SECONDS:
        problem = f"{seconds} is neither 0 nor between {_LEAST_SECONDS} and {_MOST_SECONDS}"
        yield PreflightCode.VARIABLE_INVALID, _RESCUE_SECONDS, problem, "Set for example 45, or 0 for no revert."
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
    if variables.get("cluster_package_cache") and package_manager(facts) == "apt":
        yield PROXIES
    for item in items(variables, _REPOSITORIES):
        has_login = any("@" in uri.partition("//")[2].partition("/")[0] for uri in _words(item, "uris"))
        yield from repository_paths(str(item.get("name")), package_manager(facts), has_login=has_login)


COMPONENT = Component(
    role="platform",
    shared=True,
    derived_variables=dict.fromkeys(("data_address", "data_interface", "platform_data_addresses"), _ADDRESS),
    common_variables=frozenset({"platform_package_sets"}),
    checks=(Check("platform.rescue", _rescue),),
    never_fixes=frozenset({"platform.rescue"}),  # the role that made the change repeats it
    reasons={
        "platform.rescue.none": Wording("no change could cut off the operator"),
        "platform.rescue.ok": Wording("the controller confirmed the last change: {what}"),
        "platform.rescue.limit": Wording(
            "the node reverted the last change, which was not confirmed within {seconds} s: {what} ({files})",
            "Correct the setting in the inventory, or the switch or firewall that does not let SSH pass with it, then "
            "run: provision apply",
        ),
        "platform.rescue.boot": Wording(
            "the node reverted the last change, because it was booted before the confirmation: {what} ({files})",
            _APPLY,
        ),
        "platform.rescue.late": Wording(
            "the node reverted the last change, which was not complete in time: {what} ({files})",
            "Find out what delays programs on the node (load, disks, a package manager), then run: provision apply",
        ),
        "platform.rescue.failed": Wording(
            "the node reverted the last change, because a part of it failed: {what} ({files})",
            "Correct the setting in the inventory, then run: provision apply",
        ),
        "platform.rescue.reverted": Wording(
            "the node reverted the last change for a reason that this version does not know: {what} ({files})",
            _APPLY,
        ),
        "platform.rescue.not_restored": Wording(
            "the node could not restore all files of the last change: {what} ({files})",
            "Free space on the node's disk (df -h), then run: provision apply",
        ),
    },
    settings=_settings,
    cluster_settings=cache_settings,
    files=_files,
    repositories=_repositories,
)
