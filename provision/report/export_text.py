"""Exported jobs as text and as a document, and errors and notes about manifests."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from provision.batch.export.yaml_text import yaml_text
from provision.errors import UsageError
from provision.model.reason import Reason
from provision.report.reasons import message, remedy

if TYPE_CHECKING:
    from provision.report.json_documents.advice import Export

_WIDTH = 118


@dataclass(frozen=True)
class Exported:
    """An exported job."""

    name: str
    target: str
    start: str
    """The command that starts it."""
    first_line: str = ""
    """The first line of a script."""
    body: str = ""
    """A script without its first line."""
    documents: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    """Manifests."""
    notes: tuple[Reason, ...] = ()


def export_text(exported: Exported) -> str:
    """Return the text of an export, with its notes as comments."""
    lines = [f"Job {exported.name}, written by provision export. To start it: {exported.start}"]
    lines += [f"Note: {line}" for line in note_lines(exported.notes)]
    body = exported.body or yaml_text(exported.documents)
    first = f"{exported.first_line}\n" if exported.first_line else ""
    return first + _comments(lines) + body


def export_document(exported: Exported, *, with_text: bool = True) -> Export:
    """Return the document of ``export --json``; without the export itself if a file has it."""
    document: Export = {
        "name": exported.name,
        "target": exported.target,
        "notes": [{**note.as_document(), "message": message(note), "remedy": remedy(note)} for note in exported.notes],
    }
    if with_text:
        document |= {"documents": list(exported.documents), "text": export_text(exported)}
    return document


def note_lines(notes: Sequence[Reason]) -> list[str]:
    """Return each note with its remedy as one line."""
    lines = []
    for note in dict.fromkeys(notes):
        advice = remedy(note)
        lines.append(f"{message(note)}. {advice}" if advice else f"{message(note)}.")
    return lines


def manifest_error(where: str, problems: Sequence[tuple[int, Reason]]) -> UsageError:
    """Return the error for all problems of a manifest, each with file and line."""
    lines = [f"{where}:{line}: {message(problem)}" for line, problem in problems]
    advice = list(dict.fromkeys(remedy(problem) for _, problem in problems))
    return UsageError("\n".join(lines), remedy=" ".join(advice[:3]), reason=problems[0][1])


def manifest_notes(where: str, notes: Sequence[tuple[int, Reason]]) -> list[str]:
    """Return the notes about a manifest, each with file and line."""
    return list(dict.fromkeys(f"{where}:{line}: {message(note)}" for line, note in notes))


def _comments(lines: Sequence[str]) -> str:
    """Return lines as comments. A comment ends at a line break, so there is none within the text of a note."""
    printable = ("".join(letter if letter.isprintable() else " " for letter in line) for line in lines)
    wrapped = [part for line in printable for part in textwrap.wrap(line, _WIDTH, break_long_words=False)]
    return "".join(f"# {line}\n" for line in wrapped)
