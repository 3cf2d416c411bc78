"""Somebody who is asked whether nodes are those whose keys they show."""

from __future__ import annotations

import base64

__all__ = ["BLOB", "Person"]

BLOB = base64.b64encode(b"\0\0\0\x0bssh-ed25519" + bytes(36)).decode()
"""A public host key in the format of known_hosts."""


class Person:
    """Approves everything and remembers what was shown."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def step(self, message):
        """Say nothing."""

    def approve(self, pinned):
        """Approve."""
        self.seen += [item.target.name for item in pinned]
