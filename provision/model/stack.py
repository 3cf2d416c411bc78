"""The stack of a node: versions of kernel, RDMA stack, driver, fabric manager, container toolkit, docker and image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

STACK_LOCK_FILE = "stack.lock.yml"
"""The name of a lock file, which is in the folder of the inventory."""
STACK_COMPONENTS = ("kernel", "headers", "rdma", "driver", "fabric_manager", "toolkit", "docker", "image")
"""In the order in which they build on each other."""
INBOX = "inbox"
"""The version of an RDMA stack whose kernel modules are those of the kernel."""


@dataclass(frozen=True)
class StackPart:
    """One component of a stack."""

    version: str
    packages: Mapping[str, str] = field(default_factory=dict)
    """Package -> version; empty if the component consists of no packages, or the packages are unknown."""


@dataclass(frozen=True)
class Stack:
    """The components of a node, or of a lock file. A missing component is not installed, or not locked."""

    system: str
    """As the roles name it: ``debian_12``."""
    architecture: str
    parts: Mapping[str, StackPart]
    """In the order of `STACK_COMPONENTS`."""
    node: str = ""
    """The node that it was read from."""
    accepted: tuple[str, ...] = ()
    """Names of known conflicts that do not apply, for example because a distribution has patched the packages."""

    def version(self, component: str) -> str:
        """Return the version of a component; empty if there is none."""
        part = self.parts.get(component)
        return part.version if part else ""

    def packages(self, component: str) -> Mapping[str, str]:
        """Return the packages of a component."""
        part = self.parts.get(component)
        return part.packages if part else {}

    @property
    def versions(self) -> dict[str, str]:
        """All packages with their versions."""
        return {name: version for part in self.parts.values() for name, version in part.packages.items()}
