"""Width and colours of reports; the default is 80 columns without colours.

A report writes `state("FAILED")`. With colours, the word is between marks (private-use characters), which `painted`
replaces with escape sequences when the report is printed. Text from nodes never contains an escape sequence.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

NARROWEST, WIDEST = 80, 200
"""Tables fit 80 columns; lines of more than 200 are hard to read."""
_LAST_COLUMN = 20
"""Least width of the last column of a table."""
_END = "\ue0f0"
_CODES = {"\ue0f1": "\x1b[32m", "\ue0f2": "\x1b[33m", "\ue0f3": "\x1b[31m", "\ue0f4": "\x1b[35m", _END: "\x1b[0m"}
_GREEN, _YELLOW, _RED, _MAGENTA, _ = _CODES
_MARK = re.compile(f"[{''.join(_CODES)}]")
_COLOURS = {
    **dict.fromkeys(("pass", "ok", "changed", "unchanged", "reset", "nothing", "reloaded", "loaded"), _GREEN),
    **dict.fromkeys(("running", "succeeded", "completed", "ready"), _GREEN),
    **dict.fromkeys(("warn", "skip", "skipped", "waiting", "pending", "queuing", "stopping", "stopped"), _YELLOW),
    **dict.fromkeys(("interrupted", "waiting", "unlocked", "ready,schedulingdisabled", "containercreating"), _YELLOW),
    **dict.fromkeys(("fail", "failed", "not ok", "error", "lost", "died", "unreachable", "refused", "notready"), _RED),
    "+": _GREEN,
    "~": _YELLOW,
    "-": _RED,
    **dict.fromkeys(("!", "needs-idle", "needs-reboot", "disruptive"), _MAGENTA),
}
_chosen = {"width": NARROWEST, "colour": 0}


def choose(*, columns: int = NARROWEST, colour: bool = False) -> None:
    """Set the width of reports, and whether states are coloured."""
    _chosen.update(width=max(NARROWEST, min(columns, WIDEST)), colour=int(colour))


def width() -> int:
    """Return the number of columns of a report."""
    return _chosen["width"]


def state(word: str, columns: int = 0) -> str:
    """Return a state padded to `columns`, with its colour if colours are enabled."""
    padding = " " * (columns - len(word))
    colour = _COLOURS.get(word.lower()) if _chosen["colour"] else None
    return f"{colour}{word}{_END}{padding}" if colour else word + padding


def length(text: str) -> int:
    """Return the number of columns of a text; marks have no width."""
    return len(_MARK.sub("", text)) if _chosen["colour"] else len(text)


def padded(text: str, columns: int) -> str:
    """Return a text padded with blanks to a width."""
    return text + " " * (columns - length(text))


def shortened(text: str, columns: int) -> str:
    """Return the text if it fits, else as many whole words of it as fit, and ``...``; spaces stay as they are."""
    if len(text) <= columns:
        return text
    head = text[: max(columns - 3, 0)]
    if not text[len(head)].isspace():
        head = head[: max(head.rfind(" "), 0)] or head
    return (head.rstrip() + "...")[:columns]


def shortened_name(name: str, columns: int) -> str:
    """Return a name, or its first characters and ``...``."""
    return name if len(name) <= columns else name[: columns - 3] + "..."


def wrapped(text: str, indent: str = "") -> list[str]:
    """Return the lines of a paragraph, wrapped at blanks; all but the first begin with `indent`."""
    return textwrap.wrap(text, width(), subsequent_indent=indent, break_on_hyphens=False) or [""]


def hanging(first: str, text: str) -> list[str]:
    """Return a paragraph, wrapped at blanks to the right of `first`."""
    lines = textwrap.wrap(
        text, width(), initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False
    )
    return lines or [first.rstrip()]


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, columns: int = 0) -> list[str]:
    """Return a table with upper-case headers; the last column is wrapped to `columns` (the report's width)."""
    shown = [[header.upper() for header in headers], *rows]
    widths = [max(length(row[at]) for row in shown) for at in range(len(headers) - 1)]
    indent = sum(widths) + 2 * len(widths)
    room = max(_LAST_COLUMN, (columns or width()) - indent)
    lines: list[str] = []
    for row in shown:
        head = "".join(f"{padded(cell, size)}  " for cell, size in zip(row, widths, strict=False))
        first, *rest = textwrap.wrap(row[-1], room, break_on_hyphens=False) or [""]
        lines += [(head + first).rstrip(), *(" " * indent + line for line in rest)]
    return lines


def is_mark(letter: str) -> bool:
    """Return whether a character is a mark of `state`; always False without colours."""
    return letter in _CODES and bool(_chosen["colour"])


def painted(text: str, *, colour: bool) -> str:
    """Return the text with escape sequences instead of marks, or without marks; a colour ends with its line."""
    if not _MARK.search(text):
        return text
    if not colour:
        return _MARK.sub("", text)
    lines = (_MARK.sub(lambda mark: _CODES[mark[0]], line + _END * bool(_open(line))) for line in text.split("\n"))
    return "\n".join(lines)


def _open(line: str) -> bool:
    """Return whether a colour begins in the line and does not end."""
    marks = _MARK.findall(line)
    return bool(marks) and marks[-1] != _END
