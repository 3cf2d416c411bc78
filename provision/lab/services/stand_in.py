"""The definition of a SIMULATED package of the lab."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StandIn:
    """One package."""

    name: str
    version: str
    summary: str
    files: Mapping[str, str] = field(default_factory=dict)
    """Path on the node -> content; files in a ``bin`` folder or beginning with ``#!`` become executable."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Additional control fields, e.g. Depends."""
    scripts: Mapping[str, str] = field(default_factory=dict)
    """Maintainer scripts: ``postinst``, ``prerm``, ... -> content."""

    @property
    def file_name(self) -> str:
        """Return the package's file name."""
        return f"{self.name}_{self.version}_all.deb"
