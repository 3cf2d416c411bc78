"""Answers of the preflight program on a node: packages, package sources and the training image."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from provision.documents.text import PrintableLine

_MAX_ITEMS = 10_000


class PackageEntry(Struct):
    """A package of the transaction that apt would perform."""

    name: PrintableLine
    version: PrintableLine


class SourceProblem(Struct):
    """An unusable package source."""

    code: Literal["unreachable", "invalid"]
    uri: PrintableLine = field(default_factory=PrintableLine)
    """Empty if apt names none."""
    repository: PrintableLine = field(default_factory=PrintableLine)
    """The name of a repository that the inventory configures; empty for the node's own sources."""
    reason: PrintableLine = field(default_factory=PrintableLine)


class ImageAnswer(Struct):
    """Whether the registry has the image for this node."""

    code: Literal["ok", "unreachable", "untrusted", "missing", "refused", "unchecked"]
    reason: PrintableLine = field(default_factory=PrintableLine)


class PreflightAnswer(Struct):
    """The answer of one node."""

    packages: Annotated[dict[PrintableLine, PrintableLine | None], Meta(max_length=_MAX_ITEMS)] | None = None
    """Package -> candidate version, null if no source has it; absent if apt was not queried."""
    install: Annotated[list[PackageEntry], Meta(max_length=_MAX_ITEMS)] = field(default_factory=list)
    """The whole transaction including dependencies; empty if apt could not resolve it."""
    sources: Annotated[list[SourceProblem], Meta(max_length=_MAX_ITEMS)] = field(default_factory=list)
    conflict: PrintableLine = field(default_factory=PrintableLine)
    """The reason why apt could not install them together; else empty."""
    image: ImageAnswer | None = None
