"""What the steps of a plan would change in the content of files."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Difference", "FileDiff", "RoleDiff"]


@dataclass(frozen=True)
class Difference:
    """What one task would change at one place, as Ansible tells it: secrets are still in it."""

    node: str
    role: str
    path: str
    """A file, or what else is compared: ``running kernel``, the name of a task."""
    before: str = field(default="", repr=False)
    after: str = field(default="", repr=False)
    withheld: str = ""
    """Why the content is not told; empty where it is."""


@dataclass(frozen=True)
class FileDiff:
    """One difference for people: without secrets, and with nothing that a terminal would obey."""

    path: str
    diff: str = ""
    """Lines of a unified diff, from the first ``@@`` on."""
    note: str = ""
    """Why there is no diff."""


@dataclass(frozen=True)
class RoleDiff:
    """All that one role would change in files of one node."""

    node: str
    role: str
    files: tuple[FileDiff, ...] = ()
    note: str = ""
    """Why nothing is shown of the role, or not all."""
