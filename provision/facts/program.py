"""The program that the probe sends for what the shell would need many others for; several facts read its answer."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from provision.documents import decode
from provision.documents.probe import EngineAnswer, EngineContainer, EngineImage, EngineInfo, ProbeAnswer
from provision.errors import InvalidDocument
from provision.facts.base import RawOutput, Unknown
from provision.facts.units import TIME_KEEPERS, UNIT_PLACES

__all__ = [
    "BEGIN",
    "COMMAND",
    "COMMAND_OF_ARGUMENT",
    "FOLDER",
    "LIMIT_SECONDS",
    "PROBE",
    "answer",
    "command",
    "engine_answer",
]

FOLDER = "/var/lib/provision/receipts"
LIMIT_SECONDS = 40
_NO_PYTHON = "there is no python3 on the node"
_FILES = Path(__file__).with_name("files")
_NAMES = ("busy.py", "managed.py", "engine.py")
_MAIN = "import sys\nprint(json.dumps(found_here(sys.argv[1])))\n"
_OWN_IMPORTS = re.compile(r"^from provision\.\S+ import (?:\([^)]*\)|.*)\n", re.MULTILINE)
_NEEDS_PYTHON = f"command -v python3 >/dev/null || {{ echo '{_NO_PYTHON}' >&2; exit 127; }}"


def command(folder: str) -> str:
    """Return the shell command that looks at the node; it needs python3 there and leaves no file."""
    return f"{_NEEDS_PYTHON}\npython3 -I -S -c {shlex.quote(_source(*_NAMES) + _MAIN)} {shlex.quote(folder)}"


def _source(*names: str) -> str:
    """Join files to one program: what they import from each other is part of it already."""
    texts = ((_FILES / name).read_text(encoding="utf-8") for name in names)
    return "".join(_without_words(_OWN_IMPORTS.sub("", text)) for text in texts)


def _without_words(source: str) -> str:
    """Leave out what only people read: it would go to every node with every look.

    A line that begins with three quotes begins a docstring; in these files nothing else does.
    """
    kept, inside = [], False
    for line in source.splitlines(keepends=True):
        text = line.strip()
        quotes = text.count('"""')
        if not inside and not text.startswith(('"""', "# ")) and text:
            kept.append(line)
        inside = inside != (quotes == 1)
    return "".join(kept)


COMMAND = command(FOLDER)
COMMAND_OF_ARGUMENT = f'{_NEEDS_PYTHON}\npython3 -I -S -c "$1"{shlex.quote(_MAIN)} {FOLDER}'
"""The same in a shell whose first argument is PROBE, so that it is sent once."""
PROBE = f"TIME_KEEPERS, UNIT_PLACES = {TIME_KEEPERS}, {UNIT_PLACES}\n" + _source(*_NAMES, "probe.py")
"""The program, and behind it what runs all facts' commands."""
BEGIN = _source("begin.py")
"""What begins PROBE."""


def answer(raw: RawOutput) -> ProbeAnswer | Unknown:
    """Return what the program has printed; it is shared, and read once for all facts."""
    return _read(raw.stdout) if raw.exit_code == 0 else Unknown(raw.said())


@functools.lru_cache(maxsize=64)
def _read(text: str) -> ProbeAnswer | Unknown:
    try:
        return decode(text, ProbeAnswer, node="", what="the probe's program")
    except InvalidDocument as error:
        return Unknown(error.message)


E = TypeVar("E", EngineInfo, EngineImage, EngineContainer)


def engine_answer(raw: RawOutput, choose: Callable[[EngineAnswer], E | None], label: str) -> E | Unknown | None:
    """Return what was found of the engine: None where it answered that there is no such thing."""
    found = answer(raw)
    if isinstance(found, Unknown):
        return found
    if found.engine is None:
        return Unknown(f"{label}: docker's engine was not asked")
    said = choose(found.engine)
    if said is not None and said.hung is not None:
        return Unknown(f"hung: {label} (no end within {said.hung:g} s)")
    if said is not None and said.error:
        return Unknown(f"{label} failed: {said.error}")
    return said
