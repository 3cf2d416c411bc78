"""What the preflight's program on a node answers: packages, package sources and the training image."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from provision.documents.text import PrintableLine

__all__ = ["ImageAnswer", "PackageEntry", "PreflightAnswer", "SourceProblem"]

_MOST = 10_000


class PackageEntry(Struct):
    """A package of the transaction that apt would make."""

    name: PrintableLine
    version: PrintableLine


class SourceProblem(Struct):
    """A package source that cannot be used."""

    code: Literal["unreachable", "invalid"]
    uri: PrintableLine = field(default_factory=PrintableLine)
    """Empty where apt names none."""
    repository: PrintableLine = field(default_factory=PrintableLine)
    """The name of a repository that the inventory configures; empty for the node's own sources."""
    reason: PrintableLine = field(default_factory=PrintableLine)


class ImageAnswer(Struct):
    """Whether the registry has the image for this node."""

    code: Literal["ok", "unreachable", "untrusted", "missing", "refused", "unchecked"]
    reason: PrintableLine = field(default_factory=PrintableLine)


class PreflightAnswer(Struct):
    """The answer of one node."""

    packages: Annotated[dict[PrintableLine, PrintableLine | None], Meta(max_length=_MOST)] | None = None
    """Package -> the version that apt would install, null where no source has it; absent where apt was not asked."""
    install: Annotated[list[PackageEntry], Meta(max_length=_MOST)] = field(default_factory=list)
    """The whole transaction, dependencies included; empty where apt could not tell."""
    sources: Annotated[list[SourceProblem], Meta(max_length=_MOST)] = field(default_factory=list)
    conflict: PrintableLine = field(default_factory=PrintableLine)
    """Why apt could not install them together; empty where it could."""
    image: ImageAnswer | None = None
