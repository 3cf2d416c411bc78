"""Packages in the versions of a stack lock: which of them differ on a node, and the file with which apt holds them.

The role platform uses this file as a filter plugin through a link. It imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

HOLDS = "/etc/apt/preferences.d/provision-stack-lock.pref"
_HEAD = "# Managed by provision (role platform): the versions of stack.lock.yml."
_PRIORITY = 1001
"""From 1000 on, apt installs the version even if it is older than the installed one; it never replaces it by itself."""


def locked_versions(locked: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return package -> version of all roles."""
    return {name: version for versions in locked.values() for name, version in versions.items()}


def deviating_packages(
    locked: Mapping[str, Mapping[str, str]], roles: Iterable[str], installed: Mapping[str, str]
) -> list[str]:
    """Return the installed packages of these roles that have another version than the lock."""
    return sorted(
        name
        for role in roles
        for name, version in locked.get(role, {}).items()
        if installed.get(name, version) != version
    )


def hold_text(versions: Mapping[str, str]) -> str:
    """Return apt's preferences for exactly these versions."""
    pairs = sorted(versions.items())
    stanzas = [f"Package: {name}\nPin: version {version}\nPin-Priority: {_PRIORITY}" for name, version in pairs]
    return "\n\n".join([_HEAD, *stanzas]) + "\n"


def hold_files(versions: Mapping[str, str], node: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the file that holds packages as input of the module platform_files; without a lock it is removed."""
    if versions:
        return [{"path": HOLDS, "content": hold_text(versions)}]
    return [{"path": HOLDS, "state": "absent"}] if HOLDS in node.get("repository_files", ()) else []


class FilterModule:
    """Ansible filters of the role platform."""

    def filters(self) -> dict[str, object]:
        """Return the filters by name."""
        return {
            "platform_deviating_packages": deviating_packages,
            "platform_hold_files": hold_files,
            "platform_locked_versions": locked_versions,
        }
