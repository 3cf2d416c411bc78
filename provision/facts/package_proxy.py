"""Whether the package cache of the cluster serves the node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from provision.documents import decode
from provision.documents.package_proxy import PackageProxyAnswer
from provision.errors import InvalidDocument
from provision.facts.base import RawOutput, Unknown


@dataclass(frozen=True)
class PackageProxy:
    """How the package cache answers the node; empty texts if the node uses none."""

    url: str = ""
    """The cache that the node was set up with."""
    answer: str = ""
    """``ok``, ``refused`` or ``unreachable``."""
    cause: str = ""
    """Why it is unreachable."""
    others: tuple[str, ...] = ()
    """Hosts of the node's repositories with http:// that the cache does not serve."""


class PackageProxyFact:
    """Asks the cache that the node was set up with."""

    name: ClassVar[str] = "package_proxy"
    label: ClassVar[str] = "the request to the package cache"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = "@package_proxy"

    def parse(self, raw: RawOutput) -> PackageProxy | Unknown:
        """Return an empty state if the node uses no cache."""
        if not raw.stdout.strip():
            return PackageProxy()
        try:
            answer = decode(raw.stdout, PackageProxyAnswer, node="", what="the answer of the package cache")
        except InvalidDocument as error:
            return Unknown(error.message)
        return PackageProxy(str(answer.url), answer.answer, str(answer.cause), tuple(map(str, answer.others)))
