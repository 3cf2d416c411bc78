"""A fact is a shell command and a pure parser of its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

__all__ = ["Fact", "RawOutput"]

Value_co = TypeVar("Value_co", covariant=True)


@dataclass(frozen=True)
class RawOutput:
    """What one fact's command printed on a node."""

    stdout: str
    exit_code: int


class Fact(Protocol[Value_co]):
    """One thing to know about a node.

    ``command`` is POSIX shell, needs nothing installed by us, changes nothing, and prints no secret.
    ``parse`` never raises on odd output: what cannot be read is a value that says so.
    """

    name: ClassVar[str]
    command: ClassVar[str]

    def parse(self, raw: RawOutput) -> Value_co:
        """Turn the output into the fact's value."""
