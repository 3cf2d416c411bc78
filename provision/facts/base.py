"""A fact is a shell command and a pure parser of its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

__all__ = ["Fact", "RawOutput", "Unknown"]

Value_co = TypeVar("Value_co", covariant=True)


@dataclass(frozen=True)
class RawOutput:
    """What one fact's command printed on a node."""

    stdout: str
    exit_code: int
    stderr: str = ""

    def lines(self) -> list[str]:
        """The lines of stdout that hold anything."""
        return [line for line in self.stdout.splitlines() if line.strip()]

    def pairs(self, separator: str = "=") -> dict[str, str]:
        """The lines ``key=value`` of stdout; a key given twice keeps its last value."""
        found: dict[str, str] = {}
        for line in self.lines():
            key, mark, value = line.partition(separator)
            if mark:
                found[key.strip()] = value.strip()
        return found

    def said(self) -> str:
        """The last line that the command left behind, for the reason of a failure."""
        text = self.stderr.strip() or self.stdout.strip()
        return text.splitlines()[-1].strip() if text else f"exit status {self.exit_code}"


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be had, and why; it stands where the value would."""

    reason: str


class Fact(Protocol[Value_co]):
    """One thing to know about a node.

    ``command`` is POSIX shell, needs nothing installed by us, changes nothing, and prints no secret. It may use
    the variables of ``Parameters`` (``$PROBE_NAMES`` and others).
    ``parse`` never raises on odd output: what cannot be read is an Unknown that says so.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    """The program that may hang, as a person would type it."""
    limit_seconds: ClassVar[int]
    command: ClassVar[str]

    def parse(self, raw: RawOutput) -> Value_co | Unknown:
        """Turn the output into the fact's value."""
