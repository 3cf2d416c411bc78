"""Pending changes in the content of files."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Difference:
    """The change of one object by one task, as Ansible reports it. It can contain secrets."""

    node: str
    role: str
    path: str
    """A file, or another compared object: ``running kernel``, the name of a task."""
    before: str = field(default="", repr=False)
    after: str = field(default="", repr=False)
    withheld: str = ""
    """Why the content is withheld; empty if it is shown."""


@dataclass(frozen=True)
class FileDiff:
    """One difference for display, without secrets and terminal control characters."""

    path: str
    diff: str = ""
    """Lines of a unified diff, starting with the first ``@@``."""
    note: str = ""
    """Why there is no diff."""


@dataclass(frozen=True)
class RoleDiff:
    """Pending changes of one role in files of one node."""

    node: str
    role: str
    files: tuple[FileDiff, ...] = ()
    note: str = ""
    """Why differences are missing."""
