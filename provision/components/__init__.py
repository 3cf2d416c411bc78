"""Everything that provision knows about each role: one module with one `COMPONENT` per role.

A module in this folder that defines `COMPONENT` is a component; nothing else lists the roles.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from provision.components.base import Component, in_order

__all__ = ["COMPONENTS", "JOB_ROLES", "MODULE_LOADER", "ROLES", "SHARED", "Component", "roles_to_load"]


def _defined() -> Iterator[Component]:
    for module in iter_modules(__path__, f"{__name__}."):
        component = getattr(import_module(module.name), "COMPONENT", None)
        if isinstance(component, Component):
            yield component


COMPONENTS: Mapping[str, Component] = MappingProxyType({one.role: one for one in in_order(_defined())})
"""Role -> its component, in the order of ``site.yml``."""
ROLES = tuple(COMPONENTS)
JOB_ROLES = tuple(role for role, component in COMPONENTS.items() if component.for_jobs)
"""The roles that exist for jobs: they are disabled on a node that takes none."""
(SHARED,) = (component for component in COMPONENTS.values() if component.shared)
"""The role that runs before every other role of a run."""
(MODULE_LOADER,) = (component for component in COMPONENTS.values() if component.loads_module)
"""The role whose kernel module is loaded at boot."""


def roles_to_load(planned: Collection[str]) -> frozenset[str]:
    """Return the roles of a run: the planned ones and those whose variables they use, which are the ones in `after`."""
    return frozenset(planned).union(*(COMPONENTS[role].after for role in planned))
