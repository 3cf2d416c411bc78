"""The people that an inventory names: who may apply and who may submit jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Person"]


@dataclass(frozen=True)
class Person:
    """One person of ``cluster_operators`` or ``cluster_submitters``."""

    name: str
    key: str
    """The SSH public key: its type and its base64 blob, separated by one space, without a comment."""
    role: Literal["operator", "submitter"]
    user: str = ""
    """Of a submitter: the ``UID:GID[,GID...]`` that his jobs run as."""
