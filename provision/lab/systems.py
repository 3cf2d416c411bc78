"""Operating systems of lab nodes: every system that the roles support (``roles/platform/vars``)."""

from __future__ import annotations

from dataclasses import dataclass

from provision.errors import LabError
from provision.resources import roles_folder

DEFAULT_SYSTEM = "debian12"
"""The system of nodes if none is requested, and that of the training image."""


@dataclass(frozen=True)
class LabSystem:
    """What nodes of a system are built from."""

    name: str
    """As on the command line: ``debian12``."""
    suite: str
    """The release's name in apt: ``bookworm``."""
    archive: str
    """A word in the URIs and in the keyring's name of the packages' archive: ``debian``."""
    areas: tuple[str, ...]
    """Areas of the archive: ``main``."""
    kernel: str
    """The kernel's package in virtual machines."""

    @property
    def keyring(self) -> str:
        """The file with the keys of the archive."""
        return f"/usr/share/keyrings/{self.archive}-archive-keyring.gpg"

    @property
    def sources_file(self) -> str:
        """The file with the archive's apt sources on nodes."""
        return f"/etc/apt/sources.list.d/{self.archive}.sources"

    @property
    def mirror_variable(self) -> str:
        """Environment variable with the URL of a mirror, for controllers whose apt sources have none."""
        return f"PROVISION_{self.archive.upper()}_MIRROR"


def system_names() -> list[str]:
    """Return the names of all systems."""
    return sorted(_files())


def lab_system(name: str) -> LabSystem:
    """Return a system by its name.

    Raises:
        LabError: it is unknown.
    """
    from provision.inventory.role_files import systems

    file = _files().get(name)
    if file is None:
        raise LabError(f"unknown lab distribution {name}", remedy=f"Choose from {', '.join(system_names())}.")
    variables = systems(roles_folder())[file]
    lab = variables["__platform_lab"]
    return LabSystem(name, variables["__platform_repository_suite"], lab["archive"], tuple(lab["areas"]), lab["kernel"])


def _files() -> dict[str, str]:
    """Return name -> name of the variable file, without reading the files, which `lab up --help` does not need."""
    files = (path.stem for path in roles_folder().glob("*/vars/*_*.yml"))
    return {file.replace("_", "", 1): file for file in files}
