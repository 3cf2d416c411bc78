"""Text from nodes as printable lines without effect on a terminal."""

from __future__ import annotations

from typing import Any

LINE_LIMIT = 8192
"""Maximum length of a line in characters; the rest is cut off."""
TEXT_LIMIT = 262_144
"""Maximum length of a text of several lines in characters."""


class PrintableLine(str):
    """The type of a field that holds one line: when a document is parsed, other characters are replaced by spaces."""

    __slots__ = ()


class PrintableText(str):
    """The type of a field that holds several lines: control characters other than line ends and tabs are replaced."""

    __slots__ = ()


def last_lines(*texts: str, limit: int = LINE_LIMIT) -> list[str]:
    """Return the lines at the end of texts, from at most `limit` characters of each; errors are usually there."""
    return [line for text in texts for line in text[-limit:].splitlines()]


def printable_line(text: str) -> str:
    """Return the text as one line without control characters, truncated to `LINE_LIMIT`."""
    text = text[:LINE_LIMIT]
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text)


def printable_text(text: str) -> str:
    """Return the text without control characters other than line ends and tabs, truncated to `TEXT_LIMIT`."""
    text = text[:TEXT_LIMIT]
    if text.replace("\n", "").isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t" else " " for letter in text)


def printable_values(value: Any) -> Any:
    """Return a decoded document in which every text, including keys, is one printable line."""
    if isinstance(value, str):
        return printable_line(value)
    if isinstance(value, dict):
        return {printable_line(key): printable_values(item) for key, item in value.items()}
    return [printable_values(item) for item in value] if isinstance(value, list) else value
