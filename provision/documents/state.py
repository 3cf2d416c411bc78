"""Files on the controller that persist between commands; they are parsed as strictly as documents of nodes."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct, field

from provision.documents.text import PrintableLine
from provision.model.bounds import JobName


class LocalHolder(Struct):
    """The holder of a lock on the controller."""

    pid: int
    user: PrintableLine
    since: int
    """Seconds since the epoch."""
    purpose: PrintableLine


class DrainedRecord(Struct):
    """The nodes of an inventory that applies have drained and not yet resumed."""

    nodes: dict[str, dict[str, str]]
    """Node -> how it was drained: ``kind``, ``name``, ``since``, ``user``."""


class RebootsRecord(Struct):
    """The nodes that an apply reboots."""

    nodes: dict[str, float]
    """Node -> until when an apply may wait for it, in seconds since the epoch."""


class StoredCredential(Struct):
    """A credential of ``provision secret set``."""

    username: str
    secret: str


class JobNames(Struct):
    """The names of the most recently listed jobs, for shell completion."""

    MOST: ClassVar[int] = 2000
    names: Annotated[list[JobName], Meta(max_length=2000)]


class SavedPlan(Struct):
    """The file of ``plan --out``."""

    format: int
    inventory: str
    only: list[str]
    forced: list[str]
    disruptive: list[str]
    digests: dict[str, str]
    reboot: bool = False
    plan: dict[str, Any] = field(default_factory=dict)


class ResetAnswer(Struct):
    """The result of a reset on a node; Ansible writes it to a file per node."""

    steps: list[PrintableLine] = field(default_factory=list)
    left: list[PrintableLine] = field(default_factory=list)
    refused: list[PrintableLine] = field(default_factory=list)
