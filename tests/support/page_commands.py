"""The commands of a page of the documentation, the output that the page shows, and the files that a reader writes.

A block ``console`` has commands after ``$``, each with the output that the reader sees; a line ``...`` stands for any
lines. A block ``yaml`` with a title is a file of that name. Other blocks are not run.
"""

from __future__ import annotations

import re
import subprocess
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Command", "PageFile", "Reader", "differing_parts", "steps_of"]

_BLOCK = re.compile(r"^( *)```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_VARYING = (
    (re.compile(r"\b(?:\d+h)?(?:\d+m)?\d+s\b"), "TIME"),
    (re.compile(r"\b[A-Z][a-z]{2} \d{4}-\d{2}-\d{2} \d{2}:\d{2} [A-Z]{3,5}\b"), "DATE"),
    (re.compile(r"\b\d+ checks\b"), "N checks"),
)
"""What differs between two runs of the same commands."""


@dataclass(frozen=True)
class PageFile:
    """A file that the reader writes."""

    path: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command line, and the output that the page shows."""

    line: str
    output: str


def steps_of(page: str) -> list[PageFile | Command]:
    """Return files and commands of a page, in its order."""
    steps: list[PageFile | Command] = []
    for indentation, language, title, text in _BLOCK.findall(page):
        body = textwrap.dedent(text) if indentation else text
        if language == "console":
            steps += _commands(body)
        elif title:
            steps.append(PageFile(title, body))
    return steps


def _commands(body: str) -> Iterator[Command]:
    before, *parts = re.split(r"^\$ ", body, flags=re.MULTILINE)
    assert not before.strip(), f"output without a command: {before}"
    for part in parts:
        line, _, output = part.partition("\n")
        yield Command(line, output)


def differing_parts(shown: str, output: str) -> list[str]:
    """Return the parts of the shown output, which ``...`` separates, that the output does not have in this order.

    White space, and with it the wrapping of lines, is not compared, and neither are times and dates.
    """
    missing, rest = [], _comparable(output)
    for part in re.split(r"^\s*\.\.\.$", shown, flags=re.MULTILINE):
        wanted = _comparable(part)
        if wanted and wanted not in rest:
            missing.append(part.strip("\n"))
        elif wanted:
            rest = rest.partition(wanted)[2]
    return missing


def _comparable(text: str) -> str:
    line = " ".join(text.split())
    for pattern, name in _VARYING:
        line = pattern.sub(name, line)
    return line


@dataclass
class Reader:
    """Follows a page in a folder: writes its files, and runs its commands in a shell.

    Args:
        folder: the working folder.
        environment: of the shell.
        places: text of the page -> the text in this folder, such as the release of a kernel.
    """

    folder: Path
    environment: Mapping[str, str]
    places: Mapping[str, str]
    code: int = 0
    """Of the last command."""
    transcript: str = ""
    """All commands with their outputs."""

    def here(self, text: str) -> str:
        """Return a text of the page with the names of this folder."""
        pattern = "|".join(map(re.escape, self.places))
        return re.sub(pattern, lambda match: self.places[match[0]], text) if self.places else text

    def write(self, file: PageFile) -> None:
        """Write a file of the page."""
        path = self.folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.here(file.text), encoding="utf-8")

    def run(self, command: Command, *, seconds: float) -> list[str]:
        """Run a command of the page; return the parts of the shown output that it did not print.

        ``$?`` in it is the exit code of the command before.
        """
        done = subprocess.run(
            ["bash", "-c", f"(exit {self.code})\n{self.here(command.line)}"],
            cwd=self.folder,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
        self.code = done.returncode
        self.transcript += f"$ {self.here(command.line)}\n{done.stdout}"
        return differing_parts(self.here(command.output), done.stdout)
