"""How the package cache of the cluster answers a node."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from provision.documents.text import PrintableLine


class PackageProxyAnswer(Struct):
    """The answer of the probe's program."""

    url: PrintableLine = field(default_factory=PrintableLine)
    answer: Literal["", "ok", "refused", "unreachable"] = ""
    cause: PrintableLine = field(default_factory=PrintableLine)
    others: Annotated[list[PrintableLine], Meta(max_length=100)] = field(default_factory=list)
