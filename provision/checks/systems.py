"""Systems that the roles do not support."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from provision.components import SHARED
from provision.facts.system import System
from provision.model.reason import Reason, reason

TESTED, BEST_EFFORT, UNTESTED = LEVELS = ("tested", "best_effort", "untested")
"""How much of a system is tested: on nodes of the lab, by unit tests only, or nothing but its name."""


def unsupported(system: System, supported: Collection[str]) -> Reason:
    """Return why the roles do not support a system.

    Args:
        system: the system of a node.
        supported: names of the supported ones, as ``debian 12``.
    """
    known: dict[str, Any] = {
        "system": system.title,
        "name": system.name,
        "nearest": nearest(system.name, supported) or None,
        "supported": tuple(supported),
    }
    if system.is_interim:
        return reason("node.os.interim", **known)
    return reason("node.os.unsupported", **known, file=f"roles/{SHARED.role}/vars/{system.variables}.yml")


def nearest(name: str, supported: Collection[str]) -> str:
    """Return the supported release of the same system that is next to a release, the newer one of two; empty: none."""
    family, version = name.rpartition(" ")[0], _number(name)
    releases = [one for one in supported if one.rpartition(" ")[0] == family]
    return min(releases, key=lambda one: (abs(_number(one) - version), -_number(one)), default="")


def _number(name: str) -> float:
    """Return the version at the end of a name; 0 without one, as of Debian testing."""
    match = re.search(r" (\d{1,6}(?:\.\d{1,6})?)\Z", name)
    return float(match[1]) if match else 0.0
