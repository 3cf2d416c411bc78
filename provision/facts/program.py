"""The Python program that the probe sends to nodes; several facts read its answer."""

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
from provision.node.probe.units import TIME_SERVICES, UNIT_SEARCH_PATH

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
_FILES = Path(__file__).parent.parent / "node" / "probe"
_NAMES = ("busy.py", "managed.py", "engine.py")
_MAIN = "import sys\nprint(json.dumps(managed_and_engine(sys.argv[1])))\n"
_OWN_IMPORTS = re.compile(r"^from provision\.\S+ import (?:\([^)]*\)|.*)\n", re.MULTILINE)
_NEEDS_PYTHON = f"command -v python3 >/dev/null || {{ echo '{_NO_PYTHON}' >&2; exit 127; }}"


def command(folder: str) -> str:
    """Return the shell command that probes the node; it needs python3 there and writes no file."""
    return f"{_NEEDS_PYTHON}\npython3 -I -S -c {shlex.quote(_source(*_NAMES) + _MAIN)} {shlex.quote(folder)}"


def _source(*names: str) -> str:
    """Join files to one program, without the imports from each other."""
    texts = ((_FILES / name).read_text(encoding="utf-8") for name in names)
    return "".join(_minified(_OWN_IMPORTS.sub("", text)) for text in texts)


def _minified(source: str) -> str:
    """Remove comments and docstrings, because the source is sent to every node in every probe.

    In these files, a line that begins with three quotes always begins a docstring.
    """
    code, inside = [], False
    for line in source.splitlines(keepends=True):
        text = line.strip()
        quotes = text.count('"""')
        if not inside and not text.startswith(('"""', "# ")) and text:
            code.append(line)
        inside = inside != (quotes == 1)
    return "".join(code)


COMMAND = command(FOLDER)
COMMAND_OF_ARGUMENT = f'{_NEEDS_PYTHON}\npython3 -I -S -c "$1"{shlex.quote(_MAIN)} {FOLDER}'
"""The same in a shell whose first argument is PROBE, so that the source is sent once."""
PROBE = f"TIME_SERVICES, UNIT_SEARCH_PATH = {TIME_SERVICES}, {UNIT_SEARCH_PATH}\n" + _source(*_NAMES, "probe.py")
"""The program, and the code that runs all facts' commands."""
BEGIN = _source("begin.py")
"""The code that starts PROBE."""


def answer(raw: RawOutput) -> ProbeAnswer | Unknown:
    """Return the program's answer, which is parsed once for all facts."""
    return _read(raw.stdout) if raw.exit_code == 0 else Unknown(raw.last_line())


@functools.lru_cache(maxsize=64)
def _read(text: str) -> ProbeAnswer | Unknown:
    try:
        return decode(text, ProbeAnswer, node="", what="the probe's program")
    except InvalidDocument as error:
        return Unknown(error.message)


E = TypeVar("E", EngineInfo, EngineImage, EngineContainer)


def engine_answer(raw: RawOutput, choose: Callable[[EngineAnswer], E | None], label: str) -> E | Unknown | None:
    """Return a part of the engine's answer; None if the engine answered that there is no such object."""
    reply = answer(raw)
    if isinstance(reply, Unknown):
        return reply
    if reply.engine is None:
        return Unknown(f"{label}: the Docker engine was not queried")
    part = choose(reply.engine)
    if part is not None and part.hung is not None:
        return Unknown(f"hung: {label} (no end within {part.hung:g} s)")
    if part is not None and part.error:
        return Unknown(f"{label} failed: {part.error}")
    return part
