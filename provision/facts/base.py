"""The fact protocol: a shell command and a pure parser of its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

Value_co = TypeVar("Value_co", covariant=True)


@dataclass(frozen=True)
class RawOutput:
    """The output of one fact's command on a node."""

    stdout: str
    exit_code: int
    stderr: str = ""

    def lines(self) -> list[str]:
        """Return the non-blank lines of stdout."""
        return [line for line in self.stdout.splitlines() if line.strip()]

    def pairs(self, separator: str = "=") -> dict[str, str]:
        """Return the ``key=value`` lines of stdout; the last value of a repeated key counts."""
        pairs: dict[str, str] = {}
        for line in self.lines():
            key, equals, value = line.partition(separator)
            if equals:
                pairs[key.strip()] = value.strip()
        return pairs

    def last_line(self) -> str:
        """Return the last line of stderr, or else of stdout, as the cause of a failure."""
        text = self.stderr.strip() or self.stdout.strip()
        return text.splitlines()[-1].strip() if text else f"exit status {self.exit_code}"


@dataclass(frozen=True)
class Unknown:
    """The value of a fact that could not be collected, with the reason."""

    reason: str


class Fact(Protocol[Value_co]):
    """One kind of information about a node.

    ``command`` is POSIX shell, changes nothing, and prints no secret. It may use the variables of ``Parameters``
    (``$PROBE_NAMES`` and others). A command such as ``@packages`` names a function of `provision.node.probe.probe`.
    ``parse`` never raises: output that cannot be read becomes an Unknown with the reason.

    A value that changes with every probe is a separate fact: equal outputs of several nodes are parsed once, and long
    ones are sent and stored once (`outputs.py`), which a time within them would prevent.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    """The program that may hang, as typed in a shell."""
    limit_seconds: ClassVar[int]
    """Time limit of the command, usually 20. Below 40 (`probe_request.OWN_SESSION_SECONDS`) the command shares a
    session with others; one that queries a name service, a GPU tool or Docker needs its own, so at least 40."""
    command: ClassVar[str]

    def parse(self, raw: RawOutput) -> Value_co | Unknown:
        """Return the value of the fact."""
