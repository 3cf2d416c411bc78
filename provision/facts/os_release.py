"""Parse os-release: which operating system a node has, in the name by which the roles support it.

This file is the only copy: ``roles/platform/module_utils/platform_os_release.py`` is a link to it, so that the role's
Ansible module and the probe name a system alike. It imports only the standard library.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE = re.compile(r"^([A-Z_]+)=(.*)$", re.MULTILINE)
_QUOTES = "\"'"


class OsRelease(NamedTuple):
    """An operating system; ``roles/platform/vars/ID_VERSION.yml`` makes it supported."""

    id: str
    """The distribution: ``debian``."""
    version: str
    """The release that decides which packages there are: ``12``, ``24.04``."""
    title: str
    """The name for people."""


def parse_os_release(text: str) -> OsRelease | None:
    """Return the system that the text of an os-release file describes; None if it has no ID.

    The version is VERSION_ID. Of Enterprise Linux and its rebuilds it is the major version, because all minor versions
    have the same packages. A release without VERSION_ID, such as Debian testing, has its VERSION_CODENAME instead.
    """
    pairs = {key: value.strip().strip(_QUOTES) for key, value in _LINE.findall(text)}
    name = pairs.get("ID", "").lower()
    if not name:
        return None
    version = pairs.get("VERSION_ID") or pairs.get("VERSION_CODENAME", "")
    if "rhel" in [name, *pairs.get("ID_LIKE", "").split()]:
        version = version.partition(".")[0]
    return OsRelease(name, version, pairs.get("PRETTY_NAME", name))
