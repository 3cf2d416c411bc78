"""Operating systems of lab nodes: every system that the roles support (``roles/platform/vars``).

`SYSTEMS` has one row for each. A system with `stand_in` is SIMULATED: its nodes have the files of another system, and
its os-release. With a mirror of its archive they have its own files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from provision.errors import LabError
from provision.lab.marks import mark
from provision.resources import roles_folder

DEFAULT_SYSTEM = "debian12"
"""The system of nodes if none is requested, and that of the training image."""
SEPARATOR = ","
"""Separates the systems of a lab whose nodes have several."""


@dataclass(frozen=True)
class Archive:
    """An archive of packages."""

    name: str
    """Part of ``/usr/share/keyrings/<name>-archive-keyring.gpg`` and ``/etc/apt/sources.list.d/<name>.sources`` on
    nodes, of the keys or URIs in the controller's apt sources, and of the variable ``PROVISION_<NAME>_MIRROR``."""
    areas: tuple[str, ...]
    """``main``, ..."""
    kernel: str
    """The kernel's package in virtual machines."""
    packages: tuple[str, ...] = ()
    """Packages of every node that the smallest system of the archive lacks."""


DEBIAN = Archive("debian", ("main",), "linux-image-amd64")
UBUNTU = Archive("ubuntu", ("main", "universe"), "linux-image-generic", ("apt", "gpgv", "ubuntu-keyring"))
_SERVER = ("needrestart", "unattended-upgrades")
"""Packages of Ubuntu's server installation that disturb package transactions."""


@dataclass(frozen=True)
class Row:
    """A system of the lab."""

    variables: str
    """The name of the roles' file of variables: ``debian_12``."""
    archive: Archive
    packages: tuple[str, ...] = ()
    """Packages of every node beyond those of the lab."""
    stand_in: str = ""
    """The system whose files the nodes have if there is no mirror of the archive; empty: the archive is required."""
    stand_in_packages: tuple[str, ...] = ()
    """Packages of `stand_in` that are part of other packages in the system."""


SYSTEMS: Mapping[str, Row] = {
    "debian12": Row("debian_12", DEBIAN),
    "debian13": Row("debian_13", DEBIAN),
    "ubuntu22": Row("ubuntu_22.04", UBUNTU, _SERVER, stand_in="debian12"),
    "ubuntu24": Row("ubuntu_24.04", UBUNTU, _SERVER, stand_in="debian13", stand_in_packages=("docker-cli",)),
}
"""Name on the command line -> the system."""


@dataclass(frozen=True)
class LabSystem:
    """What nodes of a system are built from."""

    name: str
    """As on the command line: ``debian12``."""
    suite: str
    """The release's name in apt: ``bookworm``."""
    archive: str
    """The name of the archive: ``debian``."""
    areas: tuple[str, ...]
    """Areas of the archive: ``main``."""
    kernel: str
    """The kernel's package in virtual machines."""
    packages: tuple[str, ...] = ()
    """Packages of every node beyond those of the lab."""
    mirror: str = ""
    """The URL of a mirror; empty: as in the controller's apt sources."""
    os_release: str = ""
    """The text of os-release on nodes with the files of another system; empty: they have their own."""
    simulated: str = ""
    """What is SIMULATED of the system, as a phrase; empty: nothing."""

    @property
    def label(self) -> str:
        """The name for people."""
        return f"{self.name} (SIMULATED)" if self.simulated else self.name

    @property
    def mirror_variable(self) -> str:
        """Environment variable with the URL of a mirror, for controllers whose apt sources have none."""
        return f"PROVISION_{self.archive.upper()}_MIRROR"

    @property
    def keyring(self) -> str:
        """The file with the keys of the archive."""
        return f"/usr/share/keyrings/{self.archive}-archive-keyring.gpg"

    @property
    def sources_file(self) -> str:
        """The file with the archive's apt sources on nodes."""
        return f"/etc/apt/sources.list.d/{self.archive}.sources"

    @property
    def files(self) -> dict[str, str]:
        """The files of nodes that make up a SIMULATED system: path -> content."""
        return {OS_RELEASE: self.os_release, **mark("system", self.simulated)} if self.simulated else {}

    @property
    def hooks(self) -> tuple[str, ...]:
        """Shell commands before `files` are written; ``$1`` is the root folder. An upgrade does not undo the files."""
        if not self.simulated:
            return ()
        return (f'chroot "$1" dpkg-divert --quiet --local --no-rename --add {OS_RELEASE}',)


OS_RELEASE = "/usr/lib/os-release"


def system_names() -> list[str]:
    """Return the names of all systems."""
    return sorted(SYSTEMS)


def lab_system(name: str, mirror: str = "") -> LabSystem:
    """Return a system by its name.

    Args:
        name: the name.
        mirror: URL of a mirror of the system's archive. Default: a SIMULATED system, or the controller's own mirror.

    Raises:
        LabError: it is unknown.
    """
    from provision.inventory.role_files import systems

    row = SYSTEMS.get(name)
    if row is None:
        raise LabError(f"unknown lab distribution {name}", remedy=f"Choose from {', '.join(system_names())}.")
    files = systems(roles_folder())
    if mirror or not row.stand_in:
        packages = (*row.archive.packages, *row.packages)
        return _system(name, row.archive, files[row.variables], packages, mirror=mirror)
    base = SYSTEMS[row.stand_in]
    title, files_of = files[row.variables]["__platform_title"], files[base.variables]["__platform_title"]
    return _system(
        name,
        base.archive,
        files[base.variables],
        (*base.archive.packages, *row.packages, *row.stand_in_packages),
        os_release=_identity(row.variables, files[row.variables], files_of),
        simulated=f"{title}: the files of {files_of} with the os-release of {title}",
    )


def _system(
    name: str, archive: Archive, variables: Mapping[str, str], packages: tuple[str, ...], **more: str
) -> LabSystem:
    suite = variables["__platform_repository_suite"]
    return LabSystem(name, suite, archive.name, archive.areas, archive.kernel, packages, **more)


def _identity(file: str, variables: Mapping[str, str], files_of: str) -> str:
    """Return the text of os-release of a system, from the name and the content of its file of variables."""
    identity, _, version = file.partition("_")
    title, suite = variables["__platform_title"], variables["__platform_repository_suite"]
    pairs = {
        "PRETTY_NAME": f"{title} (SIMULATED: files of {files_of})",
        "NAME": title.partition(" ")[0],
        "VERSION_ID": version,
        "VERSION": f"{title.partition(' ')[2]} (SIMULATED)",
        "VERSION_CODENAME": suite,
        "ID": identity,
        "ID_LIKE": "debian",
    }
    return "".join(f'{key}="{value}"\n' for key, value in pairs.items())
