"""What is there of what the receipts name, and which jobs run: looked at by the roles' own program."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from provision.facts.base import RawOutput, Unknown

__all__ = ["FOLDER", "Managed", "ManagedFact", "command"]

FOLDER = "/var/lib/provision/receipts"
_NO_PYTHON = "there is no python3 on the node"
_FILES = Path(__file__).with_name("files")
_MAIN = """
import sys
print(json.dumps(dict(survey(sys.argv[1]), jobs=running_jobs())))
"""


@dataclass(frozen=True)
class Managed:
    """What a node's receipts are compared with."""

    sealed: Mapping[str, bool] = field(default_factory=dict)
    """Role -> does the seal beside its receipt fit it; where not, other hands have written the receipt."""
    observed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Role -> what is there now of what its receipt names, in the receipt's form: ``files``, ``packages``, ``units``,
    ``modules``, ``images``, ``containers``. A section that could not be looked at is not there."""
    jobs: tuple[str, ...] = ()
    """The processes that are part of a job: ``process 4711 (python3 of root) holds /dev/nvidia0``."""
    hung: tuple[str, ...] = ()
    """The programs that did not answer in time."""


def command(folder: str) -> str:
    """Return the shell command that looks at the node; it needs python3 there and leaves no file."""
    text = "".join((_FILES / name).read_text(encoding="utf-8") for name in ("busy.py", "managed.py")) + _MAIN
    return (
        f"command -v python3 >/dev/null || {{ echo '{_NO_PYTHON}' >&2; exit 127; }}\n"
        f"python3 -I -S -c {shlex.quote(text)} {shlex.quote(folder)}"
    )


class ManagedFact:
    """Compares nothing: it tells what is there, in the form of the receipts."""

    name: ClassVar[str] = "managed"
    label: ClassVar[str] = "python3 (what the receipts name)"
    limit_seconds: ClassVar[int] = 40
    command: ClassVar[str] = command(FOLDER)

    def parse(self, raw: RawOutput) -> Managed | Unknown:
        """The program prints one JSON document."""
        if raw.exit_code != 0:
            return Unknown(raw.said())
        try:
            found = json.loads(raw.stdout)
            return Managed(
                sealed={str(role): fits is True for role, fits in found["sealed"].items()},
                observed={str(role): dict(seen) for role, seen in found["observed"].items()},
                jobs=tuple(map(_line, found["jobs"])),
                hung=tuple(map(_line, found["hung"])),
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            return Unknown(f"what the receipts name cannot be read: {raw.said()}")


def _line(value: Any) -> str:
    """Return a text as one line: a process chooses its name itself, with line ends in it too."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(value))
