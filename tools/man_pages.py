"""Write the manual pages man/*.1 anew, from the commands' own help: `python -m tools.man_pages`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from provision import __version__
from provision.cli.main import ALIASES, SECTIONS, build_app
from tools.command_pages import LITERAL, paragraphs, parameters, unindented, visible_commands

FOLDER = Path(__file__).resolve().parent.parent / "man"
_SECTION, _SUBSECTION = ".SH {}", ".SS {}"
_ESCAPES = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"}
"""Characters that groff prints otherwise; examples must survive copy and paste."""


def pages() -> dict[str, str]:
    """Return file name -> page: one for the program, and one for each command, with the commands below it."""
    app = typer.main.get_command(build_app(None))
    texts = {"provision.1": _overview(app)}
    for verb, command in visible_commands(app).items():
        texts[f"provision-{verb}.1"] = [
            *_head(f"provision-{verb}", command),
            *_sections(f"provision {verb}", command, _SECTION),
            *_below(f"provision {verb}", command),
            ".SH SEE ALSO",
            ".BR provision (1)",
        ]
    return {name: "\n".join(lines) + "\n" for name, lines in texts.items()}


def _overview(app: Any) -> Iterator[str]:
    """Yield the page of the program: its help, and its commands by section."""
    yield from _head("provision", app)
    yield from _sections("provision", app, _SECTION)
    for title, verbs in SECTIONS.items():
        yield f'.SH "{title.upper()}"'
        for verb in verbs.split():
            yield from (".TP", f".BR {_escaped(f'provision-{verb}')} (1)")
            yield from _prose(paragraphs(visible_commands(app)[verb].help)[0])
    yield ".SH ALIASES"
    for alias, verb in ALIASES.items():
        yield from (".TP", f".B provision {alias}", f".BR {_escaped(f'provision-{verb}')} (1)")


def _head(name: str, command: Any) -> Iterator[str]:
    """Yield title and name. There is no date, so that the same sources give the same page."""
    yield f'.TH {_escaped(name.upper())} 1 "" "provision {__version__}" "provision"'
    summary = paragraphs(command.help)[0].replace("\n", " ").removesuffix(".")
    yield from (".SH NAME", f"{_escaped(name)} \\- {_escaped(summary)}")


def _sections(name: str, command: Any, heading: str) -> Iterator[str]:
    """Yield synopsis, description, arguments, options and examples of a command, each with a heading."""
    texts, examples = _texts(command)
    sections = {
        "Synopsis": _synopsis(name, command),
        "Description": texts,
        "Arguments": _parameters(name, command, "argument"),
        "Options": _parameters(name, command, "option"),
        "Examples": examples,
    }
    for title, lines in sections.items():
        if lines:
            yield from (heading.format(title if heading == _SUBSECTION else title.upper()), *lines)


def _below(name: str, command: Any) -> Iterator[str]:
    """Yield a section for each command below a command."""
    for word, below in visible_commands(command).items():
        yield f'.SH "{_escaped(f"{name} {word}".upper())}"'
        yield from _prose(paragraphs(below.help)[0])
        yield from _sections(f"{name} {word}", below, _SUBSECTION)
        yield from _below(f"{name} {word}", below)


def _synopsis(name: str, command: Any) -> list[str]:
    pieces = command.collect_usage_pieces(typer.Context(command, info_name=name))
    return [f".B {_escaped(name)}", _escaped(" ".join(pieces))]


def _texts(command: Any) -> tuple[list[str], list[str]]:
    """Return the lines of the paragraphs behind the summary, and those of the examples."""
    texts: list[str] = []
    examples: list[str] = []
    for paragraph in paragraphs(command.help)[1:]:
        head, _, rest = paragraph.removeprefix(LITERAL).partition("\n")
        if head.strip() in {"Example:", "Examples:"}:
            examples += _literal(rest)
        elif paragraph.startswith(LITERAL):
            texts += [".PP", *_literal(paragraph.removeprefix(LITERAL))]
        else:
            texts += [".PP", *_prose(paragraph)]
    return texts, examples


def _parameters(name: str, command: Any, kind: str) -> list[str]:
    """Return the list of arguments or options."""
    rows = parameters(name, command, kind)
    return [line for words, text in rows for line in (".TP", f".B {_escaped(words)}", *_prose(text))]


def _literal(text: str) -> list[str]:
    """Return lines that are printed as they are."""
    return [".EX", *(_line(_escaped(line)) for line in unindented(text)), ".EE"]


def _prose(text: str) -> list[str]:
    """Return a paragraph; what stands between backticks is bold."""
    parts = re.split(r"`([^`]*)`", " ".join(text.split()))
    parts[::2] = map(_escaped, parts[::2])
    parts[1::2] = [f"\\fB{_escaped(part)}\\fR" for part in parts[1::2]]
    return [_line("".join(parts))]


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in text)


def _line(text: str) -> str:
    """Return a line that is no request: one that begins with a dot or is empty gets a mark without width."""
    return text if text and text[0] != "." else f"\\&{text}"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.1"):
        old.unlink()
    for file, content in pages().items():
        (FOLDER / file).write_text(content, encoding="utf-8")
