"""Cache of long outputs that many nodes share: a node sends only the hash of a text that the controller has."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Mapping

SHARED = frozenset({"container_trust", "modules", "names", "nvlinks", "packages", "pci_routing"})
"""Facts whose outputs are long, equal on many nodes, and contain nothing confidential."""

_SHORT = 1024
"""Characters; shorter texts are always sent."""
_LONG = 512 * 1024
"""Longer texts are never a valid output."""
_MOST = 64
"""Texts to store; each node receives the hashes of all. One probe may collect twice as many."""


class Outputs:
    """Stored texts of earlier probes, and texts of this probe that at least two nodes printed.

    The key is the SHA-256 of the UTF-8 text, computed on the controller; hashes reported by nodes are not trusted.
    The class is thread-safe.
    """

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self._texts = {digest: text for digest, text in (texts or {}).items() if _digest(text) == digest}
        self._used: dict[str, None] = {}
        self._once: set[str] = set()
        self._lock = threading.Lock()
        self.new = False
        """Whether a text was added."""

    def digests(self) -> tuple[str, ...]:
        """Return the hashes of all texts in hexadecimal."""
        with self._lock:
            return tuple(self._texts)

    def known(self, digest: str) -> str | None:
        """Return the text of a hash; None if it is unknown."""
        with self._lock:
            text = self._texts.get(digest)
            if text is not None:
                self._used[digest] = None
            return text

    def saw(self, texts: Collection[str]) -> None:
        """Record the texts that one node sent."""
        digests = {_digest(text): text for text in texts if _SHORT <= len(text) <= _LONG}
        with self._lock:
            for digest, text in digests.items():
                if digest not in self._once:
                    self._once.add(digest)
                elif digest not in self._texts and len(self._texts) < 2 * _MOST:
                    self._texts[digest], self._used[digest], self.new = text, None, True

    def texts(self) -> dict[str, str]:
        """Return the texts to store, by hash: those that this probe used first, within the limit."""
        with self._lock:
            ordered = [*self._used, *(digest for digest in self._texts if digest not in self._used)]
            return {digest: self._texts[digest] for digest in ordered[:_MOST]}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
