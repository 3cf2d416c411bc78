"""Operators and submitters that the inventory lists with their SSH keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Person:
    """One entry of `cluster_operators` or `cluster_submitters`."""

    name: str
    key: str
    """The public key: ``TYPE BASE64``, without a comment."""
    role: Literal["operator", "submitter"]
    user: str = ""
    """``UID:GID`` that the jobs of a submitter run as."""


def is_one_of(owner: str, names: str) -> bool:
    """Return whether an owner (``name@host`` or a name of the inventory) is one of these people; no names: of all."""
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    return not wanted or owner in wanted or owner.partition("@")[0] in wanted
