"""Files that this machine keeps between commands; they are parsed as strictly as what nodes send."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct, field

from provision.documents.text import PrintableLine
from provision.model.bounds import JobName

__all__ = ["DrainedRecord", "JobNames", "KeptLogin", "LocalHolder", "ResetAnswer", "SavedPlan"]


class LocalHolder(Struct):
    """Who holds a lock of this machine."""

    pid: int
    user: PrintableLine
    since: int
    """Seconds since the epoch."""
    purpose: PrintableLine


class DrainedRecord(Struct):
    """The nodes of an inventory that applies have drained and not resumed yet."""

    nodes: dict[str, dict[str, str]]
    """Node -> how it was drained: ``kind``, ``name``, ``since``, ``user``."""


class KeptLogin(Struct):
    """A login of ``provision secret set``."""

    username: str
    secret: str


class JobNames(Struct):
    """The names of the jobs that this machine saw last, for shell completion."""

    MOST: ClassVar[int] = 2000
    names: Annotated[list[JobName], Meta(max_length=2000)]


class SavedPlan(Struct):
    """What ``plan --out`` writes."""

    format: int
    inventory: str
    only: list[str]
    forced: list[str]
    disruptive: list[str]
    digests: dict[str, str]
    plan: dict[str, Any] = field(default_factory=dict)


class ResetAnswer(Struct):
    """What a node's own module says of a reset; Ansible leaves it in a file for each node."""

    steps: list[PrintableLine] = field(default_factory=list)
    left: list[PrintableLine] = field(default_factory=list)
    refused: list[PrintableLine] = field(default_factory=list)
