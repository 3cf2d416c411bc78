"""Records on a node: receipts of roles, and the list of simulated components of the lab."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from provision.documents import decode
from provision.documents.records import ReceiptFile
from provision.errors import InvalidDocument
from provision.facts.base import RawOutput


@dataclass(frozen=True)
class Receipt:
    """The state that a role applied, written at the end of its last successful run; always verified before use."""

    role: str
    content: Mapping[str, Any]
    error: str = ""
    """Why the file cannot be read, else empty."""

    def names(self, key: str) -> tuple[str, ...]:
        """The names listed under `key` (``packages``, ``units``, ``files``, ...)."""
        value = self.content.get(key)
        return tuple(str(item) for item in value) if isinstance(value, dict | list) else ()


class ReceiptsFact:
    """Reads all receipts."""

    name: ClassVar[str] = "receipts"
    label: ClassVar[str] = "cat /var/lib/provision/receipts"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = "@receipts"

    def parse(self, raw: RawOutput) -> Mapping[str, Receipt]:
        """Return an invalid receipt with its error, so that its role runs again."""
        return {
            title.removesuffix(".json"): _receipt(title.removesuffix(".json"), text)
            for title, text in _files(raw.stdout).items()
        }


def _receipt(role: str, text: str) -> Receipt:
    try:
        return Receipt(role, decode(text, ReceiptFile, node="", what="not a valid receipt"))
    except InvalidDocument as problem:
        return Receipt(role, {}, problem.message)


def _files(text: str) -> dict[str, str]:
    """Split the output of ``grep -H ''`` by file rather than by line, because receipts have hundreds of lines."""
    texts: dict[str, str] = {}
    position = 0
    while position < len(text):
        newline = text.find("\n", position)
        end = newline + 1 if newline >= 0 else len(text)
        title, colon, _ = text[position:end].partition(":")
        if colon and title.endswith(".json"):
            lines = _lines_of(title).match(text, position)
            end = lines.end() if lines else end
            texts[title] = texts.get(title, "") + text[position + len(title) + 1 : end].replace(f"\n{title}:", "\n")
        position = end
    return texts


@functools.lru_cache(maxsize=64)
def _lines_of(title: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{re.escape(title)}:.*\n?)+")


class SimulatedFact:
    """Lists the simulated components of a lab node."""

    name: ClassVar[str] = "simulated"
    label: ClassVar[str] = "cat /usr/share/provision/simulated"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = """
for file in /usr/share/provision/simulated/*; do
  [ -f "$file" ] || continue
  read -r text <"$file"; echo "${file##*/}=$text"
done
exit 0
"""

    def parse(self, raw: RawOutput) -> Mapping[str, str]:
        """Return component -> what it simulates."""
        return raw.pairs()
