"""Documents of Ansible's programs for the inventory, and their cached forms."""

from __future__ import annotations

from typing import Any, TypedDict

from msgspec import Struct, field

InventoryDocument = dict[str, dict[str, Any]]
"""``ansible-inventory --list``: the groups by name, and ``_meta``."""


class InventoryGroup(Struct, frozen=True):
    """A group of ``ansible-inventory --list``."""

    hosts: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)


class InventoryMeta(Struct, frozen=True):
    """The part ``_meta`` of ``ansible-inventory --list``."""

    hostvars: dict[str, dict[str, Any]] = field(default_factory=dict)


class CachedInventory(Struct, frozen=True):
    """An inventory in the cache."""

    format: int
    document: InventoryDocument
    stderr: str


class RolesDocument(TypedDict):
    """The contents of the files of all roles, in the cache."""

    argument_specs: dict[str, dict[str, Any]]
    defaults: dict[str, Any]
    systems: dict[str, dict[str, Any]]
    code: dict[str, tuple[str, list[str]]]


class Setting(Struct, frozen=True):
    """One entry of ``ansible-config dump``; groups of settings have no name."""

    name: str = ""
    value: Any = None


class TaskAnswer(Struct, frozen=True):
    """The results of one task by host."""

    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)


class _Play(Struct, frozen=True):
    tasks: list[TaskAnswer] = field(default_factory=list)


class DebugAnswer(Struct, frozen=True):
    """The output of the callback ``json`` for a run of ``ansible -m debug``."""

    plays: list[_Play] = field(default_factory=list)
