"""What the reference documents show: their commands, as a shell takes them apart, and what these print."""

from __future__ import annotations

import re
import shlex

from tests.support.benchmark import document

__all__ = ["commands", "expected", "shape"]

_EXPECTED = "预期输出"
_PROSE = re.compile(r"[\u3000-\u9fff]|^\s*\d+\. |^```$")


def commands(name: str, verb: str = "submit") -> list[list[str]]:
    """Return a document's commands that end with a quoted line, without `arena`.

    The test is skipped where the document is not on this machine.
    """
    text = document(name).replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    starts = (f"arena {verb} ", f"arena --loglevel info {verb} ")
    return [shlex.split(line)[1:] for line in lines if line.startswith(starts) and line.count('"') > 1]


def expected(name: str, command: str) -> list[str]:
    """Return the lines that a document shows below a command, empty ones left out."""
    lines = [line.strip() for line in document(name).splitlines()]
    at = lines.index(command)
    begin = next(number for number in range(at, len(lines)) if lines[number].startswith(_EXPECTED)) + 1
    found: list[str] = []
    for line in lines[begin:]:
        if found and _PROSE.search(line):
            break
        if line and not _PROSE.search(line):
            found.append(line)
    return found


_SHAPES = (
    (r"\b\d[\dx]*(\.[\dx]+){3}\b", "ADDRESS"),
    (r"\bcn-[a-z]+\.ADDRESS\b", "NODE"),
    (r"\bready\b", "Ready"),
    (r"-launcher-[a-z0-9]{5}\b", "-launcher-*"),
    (r"\b\d+[smhd]\b", "AGE"),
    (r"\b\d+\.\d+\b", "N.N"),
    (r"-{2,}", "--"),
    (r"\s+", " "),
)


def shape(lines: list[str]) -> list[str]:
    """Return lines of output without what differs from run to run: addresses, ages, figures, widths of columns."""
    found = [line for line in lines if line.strip()]
    for pattern, mark in _SHAPES:
        found = [re.sub(pattern, mark, line) for line in found]
    return [line.strip() for line in found]
