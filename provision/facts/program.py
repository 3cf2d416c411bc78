"""The program that the probe sends for what the shell would need many others for; several facts read its answer."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provision.facts.base import RawOutput, Unknown
from provision.facts.records import is_flat
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
_MAIN = "import sys\nprint(dumps(found_here(sys.argv[1])))\n"
_NEEDS_PYTHON = f"command -v python3 >/dev/null || {{ echo '{_NO_PYTHON}' >&2; exit 127; }}"


def command(folder: str) -> str:
    """Return the shell command that looks at the node; it needs python3 there and leaves no file."""
    return f"{_NEEDS_PYTHON}\npython3 -I -S -c {shlex.quote(_source(*_NAMES) + _MAIN)} {shlex.quote(folder)}"


def _source(*names: str) -> str:
    return "".join(_without_words((_FILES / name).read_text(encoding="utf-8")) for name in names)


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


def answer(raw: RawOutput) -> Mapping[str, Any] | Unknown:
    """Return the JSON object that the program has printed; it is shared, and read once for all facts."""
    return _read(raw.stdout) or Unknown(raw.said()) if raw.exit_code == 0 else Unknown(raw.said())


@functools.lru_cache(maxsize=64)
def _read(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and is_flat(found) else {}


def engine_answer(raw: RawOutput, section: str, label: str) -> Mapping[str, Any] | Unknown | None:
    """Return what was found of the engine: None where it answered that there is no such thing."""
    found = answer(raw)
    if isinstance(found, Unknown):
        return found
    engine = found.get("engine")
    if not isinstance(engine, dict) or not isinstance(engine.get(section), dict | None):
        return Unknown(f"{label} cannot be read: {raw.said()}")
    said: Mapping[str, Any] | None = engine.get(section)
    if said and "hung" in said:
        return Unknown(f"hung: {label} (no end within {said['hung']} s)")
    if said and "error" in said:
        return Unknown(f"{label} failed: {said['error']}")
    return said
