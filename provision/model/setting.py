"""One piece of a job's command line, and who decided it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Setting"]

VARIABLE = "-x"


@dataclass(frozen=True)
class Setting:
    """A variable, a parameter or a flag of a launch."""

    flag: str
    """What the launcher calls it: ``-x`` for a variable, ``--mca`` for a parameter, else the flag itself."""
    name: str = ""
    """Of the variable or the parameter; empty for a flag, whose value is all there is."""
    value: str | None = None
    """None: the variable is passed on by its name, or the flag stands alone."""
    source: str = ""
    """Who decided: ``provision``, ``node facts``, ``inventory``, ``preset taco``, ``profile roce``, ``--env``, ..."""
    reason: str = ""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Values of a variable by node, where they differ; none of them stands on the command line."""
    typed: tuple[str, ...] = ()
    """Its words as somebody typed them; without any they are written as is usual."""

    @property
    def is_variable(self) -> bool:
        """True for a variable of the ranks."""
        return self.flag == VARIABLE and bool(self.name)

    @property
    def title(self) -> str:
        """What a person calls it: the variable, the parameter, or the flag."""
        return self.name or self.flag

    def words(self) -> list[str]:
        """Return its words on the command line; none for a variable that each node has its own value of."""
        if self.nodes:
            return []
        if self.typed:
            return list(self.typed)
        if self.is_variable:
            return [VARIABLE, self.name if self.value is None else f"{self.name}={self.value}"]
        return [self.flag, *([self.name] if self.name else []), *([] if self.value is None else [self.value])]
