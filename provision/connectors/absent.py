"""Cache of unreachable nodes, so that not every command waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from provision import cache_files
from provision.documents import decode
from provision.errors import InvalidDocument
from provision.model import Node
from provision.model.bounds import Line, NodeName, Time

REMEMBERED_SECONDS = 60.0
"""Maximum age of an entry; older entries are ignored."""
_MOST_NODES = 4096
_MOST_BYTES = 4 * 1024 * 1024
_MOST_LETTERS = 500
"""Maximum length of a reason."""
_KIND = "absent"


class AbsentNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An unreachable node."""

    name: NodeName
    address: Line
    """Host and port. An entry for a different address is ignored."""
    time: Time
    reason: Line = ""


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: list[AbsentNode]


class AbsentNodes:
    """Unreachable nodes of one inventory.

    Args:
        inventory: Its folder; None for a cache in memory only.
    """

    def __init__(self, inventory: Path | None = None) -> None:
        self._key = cache_files.inventory_key(inventory) if inventory else ""
        self._known: dict[str, AbsentNode] | None = None
        self._changing = threading.Lock()

    def among(self, nodes: Iterable[Node]) -> dict[str, AbsentNode]:
        """Return the nodes of these that were unreachable recently."""
        with self._changing:
            known, now = self._entries(), time.time()
            return {
                node.name: known[node.name]
                for node in nodes
                if node.name in known and _is_fresh(known[node.name], node, now)
            }

    def remember(self, reasons: Iterable[tuple[Node, str]], answered: Iterable[str]) -> None:
        """Add nodes that are unreachable now, with the reasons, and remove those that answered."""
        with self._changing:
            before = self._entries()
            now, gone = time.time(), set(answered)
            entries = {name: entry for name, entry in before.items() if name not in gone}
            for node, reason in reasons:
                entries[node.name] = AbsentNode(node.name, _address(node), now, _one_line(reason))
            if entries == before:
                return
            recent = sorted(entries.values(), key=lambda entry: entry.time)[-_MOST_NODES:]
            self._known = {entry.name: entry for entry in recent if now - entry.time <= REMEMBERED_SECONDS}
            if self._key:
                cache_files.write(_KIND, self._key, msgspec.json.encode(_Document(list(self._known.values()))))

    def _entries(self) -> dict[str, AbsentNode]:
        if self._known is None:
            self._known = {entry.name: entry for entry in self._read()}
        return self._known

    def _read(self) -> list[AbsentNode]:
        content = cache_files.read(_KIND, self._key) if self._key else None
        try:
            document = decode(content or b'{"nodes": []}', _Document, node="", what="absent nodes", limit=_MOST_BYTES)
        except InvalidDocument:
            return []
        return document.nodes[:_MOST_NODES]


def _is_fresh(entry: AbsentNode, node: Node, now: float) -> bool:
    return entry.address == _address(node) and 0 <= now - entry.time <= REMEMBERED_SECONDS


def _address(node: Node) -> str:
    return f"{node.connection.host}:{node.connection.port or ''}"


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text[:_MOST_LETTERS])
