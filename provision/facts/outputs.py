"""Long outputs that many nodes print alike: where their text is known by its hash, nodes do not send it again."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Mapping

__all__ = ["SHARED", "Outputs"]

SHARED = frozenset({"container_trust", "modules", "names", "nvlinks", "packages", "pci_routing"})
"""Facts whose outputs are long, alike on many nodes, and hold nothing that a site wants to keep for itself."""

_SHORT = 1024
"""Characters; what is shorter is sent each time."""
_LONG = 512 * 1024
"""What is longer is no output of ours."""
_MOST = 64
"""Texts that are kept: a node is told the hashes of all. In one look there may be twice as many."""


class Outputs:
    """The texts that were kept of earlier looks, and those of this one that two nodes or more have printed.

    A text is known by the SHA-256 of its UTF-8 form, which is computed here: what a node says of it does not count.
    It is used by many threads at once.
    """

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self._texts = {digest: text for digest, text in (texts or {}).items() if _digest(text) == digest}
        self._used: dict[str, None] = {}
        self._once: set[str] = set()
        self._lock = threading.Lock()
        self.new = False
        """Whether there is a text that was not there at first."""

    def digests(self) -> tuple[str, ...]:
        """Return the hashes of all texts, in hexadecimal."""
        with self._lock:
            return tuple(self._texts)

    def known(self, digest: str) -> str | None:
        """Return the text of a hash; None where it is not known."""
        with self._lock:
            text = self._texts.get(digest)
            if text is not None:
                self._used[digest] = None
            return text

    def saw(self, texts: Collection[str]) -> None:
        """Take note of the texts that one node has sent."""
        digests = {_digest(text): text for text in texts if _SHORT <= len(text) <= _LONG}
        with self._lock:
            for digest, text in digests.items():
                if digest not in self._once:
                    self._once.add(digest)
                elif digest not in self._texts and len(self._texts) < 2 * _MOST:
                    self._texts[digest], self._used[digest], self.new = text, None, True

    def texts(self) -> dict[str, str]:
        """Return what is worth keeping, by hash: what this look has used first, and no more than is of use."""
        with self._lock:
            ordered = [*self._used, *(digest for digest in self._texts if digest not in self._used)]
            return {digest: self._texts[digest] for digest in ordered[:_MOST]}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
