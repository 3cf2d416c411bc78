"""Text of nodes: one printable line, or several, that do nothing to a terminal."""

from __future__ import annotations

from typing import Any

__all__ = ["PrintableLine", "PrintableText", "last_lines", "printable_line", "printable_text", "printable_values"]

LINE_LIMIT = 8192
"""Characters of one line; the rest is cut off."""
TEXT_LIMIT = 262_144
"""Characters of a text of several lines."""


class PrintableLine(str):
    """The type of a field that holds one line: when a document is parsed, other characters are replaced by spaces."""

    __slots__ = ()


class PrintableText(str):
    """The type of a field that holds several lines: control characters other than line ends and tabs are replaced."""

    __slots__ = ()


def last_lines(*texts: str, limit: int = LINE_LIMIT) -> list[str]:
    """Return the lines at the end of texts, of each at most `limit` characters: errors are reported there."""
    return [line for text in texts for line in text[-limit:].splitlines()]


def printable_line(text: str) -> str:
    """Return the text as one line without control characters, cut to `LINE_LIMIT`."""
    text = text[:LINE_LIMIT]
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text)


def printable_text(text: str) -> str:
    """Return the text without control characters other than line ends and tabs, cut to `TEXT_LIMIT`."""
    text = text[:TEXT_LIMIT]
    if text.replace("\n", "").isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t" else " " for letter in text)


def printable_values(value: Any) -> Any:
    """Return a decoded document with every text in it, keys too, as one printable line."""
    if isinstance(value, str):
        return printable_line(value)
    if isinstance(value, dict):
        return {printable_line(key): printable_values(item) for key, item in value.items()}
    return [printable_values(item) for item in value] if isinstance(value, list) else value
