"""Parse os-release: which operating system a node has, in the name by which the roles support it.

This file is the only copy: ``roles/platform/module_utils/platform_os_release.py`` is a link to it, so that the role's
Ansible module and the probe name a system alike. It imports only the standard library of Python 3.6.
"""

import re
from typing import NamedTuple, Optional

_LINE = re.compile(r"^([A-Z_]+)=(.*)$", re.MULTILINE)
_QUOTES = "\"'"


REBUILDS = frozenset({"rhel", "rocky", "almalinux", "ol", "centos"})
"""Enterprise Linux and the systems with the same packages: one file of variables is for all of them."""
_MAJOR = REBUILDS | {"alinux", "tencentos"}
"""Systems whose minor versions have the same packages."""
_MINOR = re.compile(r"release (\d{1,4}(?:\.\d{1,4})?)")


class OsRelease(NamedTuple):
    """An operating system; ``roles/platform/vars/FAMILY_VERSION.yml`` makes it supported."""

    id: str
    """The distribution: ``debian``, ``rocky``."""
    version: str
    """The release that decides which packages there are: ``12``, ``24.04``, ``9``."""
    title: str
    """The name for people."""
    release: str
    """The complete version: ``12``, ``24.04``, ``9.4``."""


def variables_of(identity: str, version: str) -> str:
    """Return the name of the roles' file of variables for a system: ``debian_12``, ``el_9`` for Rocky Linux 9."""
    return f"{'el' if identity in REBUILDS else identity}_{version}"


def is_interim(identity: str, version: str) -> bool:
    """Return whether a release of Ubuntu is none with long-term support: these are of April of even years."""
    year, _, month = version.partition(".")
    return identity == "ubuntu" and year.isdigit() and (int(year) % 2 == 1 or month != "04")


def parse_os_release(text: str, centos_release: str = "") -> Optional[OsRelease]:
    """Return the system that the text of an os-release file describes; None if it has no ID.

    CentOS 7 has its minor version only in ``/etc/centos-release``, whose text is the second argument.

    The version is VERSION_ID. Of Enterprise Linux and its rebuilds it is the major version, because all minor versions
    have the same packages. A release without VERSION_ID, such as Debian testing, has its VERSION_CODENAME instead.
    """
    pairs = {key: value.strip().strip(_QUOTES) for key, value in _LINE.findall(text)}
    name = pairs.get("ID", "").lower()
    if not name:
        return None
    version = pairs.get("VERSION_ID") or pairs.get("VERSION_CODENAME", "")
    release = version
    if name in _MAJOR or "rhel" in pairs.get("ID_LIKE", "").split():
        version = version.partition(".")[0]
        minor = _MINOR.search(centos_release) if name == "centos" else None
        release = minor[1] if minor and minor[1].partition(".")[0] == version else release
    return OsRelease(name, version, pairs.get("PRETTY_NAME", name), release)
