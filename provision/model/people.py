"""People that the inventory lists by their SSH keys, and what each of them may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Person"]


@dataclass(frozen=True)
class Person:
    """One entry of `cluster_operators` or `cluster_submitters`."""

    name: str
    key: str
    """The public key: ``TYPE BASE64``, without a comment."""
    role: Literal["operator", "submitter"]
    user: str = ""
    """``UID:GID`` that the jobs of a submitter run as."""
