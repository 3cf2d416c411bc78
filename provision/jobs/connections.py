"""Connections to many nodes that stay open between requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from provision.errors import ProvisionError
from provision.threads import outcomes

if TYPE_CHECKING:
    from provision.connectors import Connector
    from provision.jobs.node_contact import Contact

T = TypeVar("T")

MANY = 64
"""Parallel requests."""


class Connections:
    """Connections to nodes for several requests; they are closed together."""

    def __init__(self, contact: Contact) -> None:
        self._contact = contact
        self._open: dict[str, Connector] = {}
        self._opening = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def to(self, name: str) -> Connector:
        """Return the connection to a node; open it if necessary."""
        with self._opening:
            existing = self._open.get(name)
        if existing is not None:
            return existing
        made = self._contact.connect(name)
        with self._opening:
            return self._open.setdefault(name, made)

    def all(self, names: Sequence[str], function: Callable[[Connector], T]) -> dict[str, T]:
        """Run `function` for all nodes in parallel; raise the first error after all have ended."""
        results = outcomes(lambda name: function(self.to(name)), names, limit=MANY)
        for name, one in zip(names, results, strict=True):
            if isinstance(one, ProvisionError):
                one.node = one.node or name
                raise one
            if isinstance(one, Exception):
                raise one
        return dict(zip(names, results, strict=True))  # type: ignore[arg-type]
