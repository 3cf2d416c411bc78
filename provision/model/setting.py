"""Settings of a launch command line, with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

VARIABLE = "-x"


@dataclass(frozen=True)
class Setting:
    """A variable, a parameter or a flag of a launch command line."""

    flag: str
    """Option of the launcher: ``-x`` for a variable, ``--mca`` for a parameter, otherwise the flag itself."""
    name: str = ""
    """Name of the variable or parameter; empty for a flag."""
    value: str | None = None
    """None for a variable that is forwarded by name, and for a flag without a value."""
    source: str = ""
    """Origin: ``provision``, ``node facts``, ``inventory``, ``preset taco``, ``profile roce``, ``--env``, ..."""
    reason: str = ""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Values of a variable per node, if they differ. They are not on the command line."""
    typed: tuple[str, ...] = ()
    """The words as the user typed them; empty for the usual notation."""

    @property
    def is_variable(self) -> bool:
        """True for an environment variable of the ranks."""
        return self.flag == VARIABLE and bool(self.name)

    @property
    def title(self) -> str:
        """Return the name of the variable or parameter, or the flag."""
        return self.name or self.flag

    def words(self) -> list[str]:
        """Return the words on the command line; none for a variable with values per node."""
        if self.nodes:
            return []
        if self.typed:
            return list(self.typed)
        if self.is_variable:
            return [VARIABLE, self.name if self.value is None else f"{self.name}={self.value}"]
        return [self.flag, *([self.name] if self.name else []), *([] if self.value is None else [self.value])]
