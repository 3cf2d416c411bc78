"""A stand-in package of the lab, before it is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["StandIn", "mark"]

_SIMULATED = "/usr/share/provision/simulated"


@dataclass(frozen=True)
class StandIn:
    """One package."""

    name: str
    version: str
    summary: str
    files: Mapping[str, str] = field(default_factory=dict)
    """Path on the node -> content; what lies in a ``bin`` folder or begins with ``#!`` is made executable."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """More control fields, such as Depends."""
    scripts: Mapping[str, str] = field(default_factory=dict)
    """What dpkg runs: ``postinst``, ``prerm``, ... -> content."""

    @property
    def file_name(self) -> str:
        """Return the package's file name."""
        return f"{self.name}_{self.version}_all.deb"


def mark(thing: str, stands_for: str) -> dict[str, str]:
    """Return the file from which `verify` knows that `thing` is SIMULATED: path -> its one line."""
    return {f"{_SIMULATED}/{thing}": f"{stands_for}\n"}
