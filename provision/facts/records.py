"""What we and the lab left on a node: receipts of roles, and the list of what is simulated."""

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

__all__ = ["Receipt", "ReceiptsFact", "SimulatedFact"]


@dataclass(frozen=True)
class Receipt:
    """What a role wanted and manages, as it wrote it when it last ended well: a hint, never the truth."""

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
    command: ClassVar[str] = """
cd /var/lib/provision/receipts 2>/dev/null && grep -H '' *.json 2>/dev/null
exit 0
"""

    def parse(self, raw: RawOutput) -> Mapping[str, Receipt]:
        """A receipt that is no JSON object is kept with the reason, so that its role runs again."""
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
    """Take apart what ``grep -H ''`` prints, file by file rather than line by line: receipts have hundreds of lines."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        stop = text.find("\n", at)
        end = stop + 1 if stop >= 0 else len(text)
        title, mark, _ = text[at:end].partition(":")
        if mark and title.endswith(".json"):
            lines = _lines_of(title).match(text, at)
            end = lines.end() if lines else end
            found[title] = found.get(title, "") + text[at + len(title) + 1 : end].replace(f"\n{title}:", "\n")
        at = end
    return found


@functools.lru_cache(maxsize=64)
def _lines_of(title: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{re.escape(title)}:.*\n?)+")


class SimulatedFact:
    """Lists the stand-ins that a lab node carries."""

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
        """Name of the thing -> what it stands in for."""
        return raw.pairs()
