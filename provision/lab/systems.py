"""Operating systems of lab nodes: every system that the roles support (``roles/platform/vars``).

`SYSTEMS` has one row for each. A system with `stand_in` is SIMULATED: its nodes have the files of another system, and
its own os-release. With a mirror of its archive they have its own files, if the lab can read such an archive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from provision.errors import LabError
from provision.lab.marks import mark
from provision.lab.package_managers import APT, DNF, PackageManager
from provision.lab.python_bundle import python_program
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
    manager: PackageManager = APT
    """The package manager of nodes. Archives of others than apt cannot be read: their systems are always SIMULATED."""
    identity: str = ""
    """ID in os-release; empty: the first part of the name of the roles' file of variables."""
    like: str = "debian"
    """ID_LIKE in os-release."""


DEBIAN = Archive("debian", ("main",), "linux-image-amd64")
UBUNTU = Archive("ubuntu", ("main", "universe"), "linux-image-generic", ("apt", "gpgv", "ubuntu-keyring"))
EL = Archive("el", (), "", manager=DNF, identity="rocky", like="rhel centos fedora")
_SERVER = ("needrestart", "unattended-upgrades")
"""Packages of Ubuntu's server installation that disturb package transactions."""
_DNF = ("dnf", "gpg", "rpm")
_PLUGINS = ("dnf-plugins-core",)


@dataclass(frozen=True)
class Rpm:
    """Properties of a SIMULATED system with rpm."""

    release: str
    """VERSION_ID in os-release, with the minor version."""
    database: str = "/var/lib/rpm"
    """The folder of rpm's database."""
    python: str = ""
    """The version of Python that modules run on, if the controller has it; empty: that of the files."""

    @property
    def major(self) -> str:
        """The version without the minor one."""
        return self.release.partition(".")[0]


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
    rpm: Rpm | None = None
    """Properties of a system with rpm."""


@dataclass(frozen=True)
class Files:
    """The system that the files of nodes are of."""

    title: str
    suite: str
    """The release's name in apt."""
    archive: Archive
    setup: str = ""
    """Shell command before packages are installed; ``$1`` is the root folder."""


_MERGE = 'for dir in bin sbin lib lib32 lib64 libx32; do mkdir -p "$1/usr/$dir"; ln -s "usr/$dir" "$1/$dir"; done'
"""Makes the links of merged folders; the packages of newer releases do that."""
_OLD: Mapping[str, Files] = {"debian11": Files("Debian 11", "bullseye", DEBIAN, _MERGE)}
"""Systems that nodes can have the files of, although the roles do not support them."""

SYSTEMS: Mapping[str, Row] = {
    "debian12": Row("debian_12", DEBIAN),
    "debian13": Row("debian_13", DEBIAN),
    "ubuntu22": Row("ubuntu_22.04", UBUNTU, _SERVER, stand_in="debian12"),
    "ubuntu24": Row("ubuntu_24.04", UBUNTU, _SERVER, stand_in="debian13", stand_in_packages=("docker-cli",)),
    "el8": Row("el_8", EL, (*_DNF, "patchelf"), stand_in="debian11", rpm=Rpm("8.10", python="3.6")),
    "el9": Row("el_9", EL, (*_DNF, *_PLUGINS), stand_in="debian12", rpm=Rpm("9.4")),
    "el10": Row("el_10", EL, (*_DNF, *_PLUGINS), stand_in="debian13", rpm=Rpm("10.0", "/usr/lib/sysimage/rpm")),
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
    """The kernel's package in virtual machines; empty: there is none."""
    packages: tuple[str, ...] = ()
    """Packages of every node beyond those of the lab."""
    manager: PackageManager = APT
    """The package manager of nodes."""
    rpm: Rpm | None = None
    """Properties of a system with rpm."""
    setup: str = ""
    """Shell command before packages are installed; ``$1`` is the root folder."""
    python: str = ""
    """The path of an interpreter of the controller that nodes get; empty: they have that of the files."""
    files_of: str = ""
    """The title of the system that a SIMULATED system has the files of."""
    title: str = ""
    """The title of a SIMULATED system."""
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
        if not self.simulated or self.manager is not APT:
            return ()
        return (f'chroot "$1" dpkg-divert --quiet --local --no-rename --add {OS_RELEASE}',)


OS_RELEASE = "/usr/lib/os-release"


def system_names() -> list[str]:
    """Return the names of all systems."""
    return sorted(SYSTEMS)


def files_of(name: str) -> Files:
    """Return the system whose files nodes have, by the name in the lab of that system."""
    from provision.inventory.role_files import systems

    if name in _OLD:
        return _OLD[name]
    row = SYSTEMS[name]
    variables = systems(roles_folder())[row.variables]
    return Files(variables["__platform_title"], variables["__platform_repository_suite"], row.archive)


def lab_system(name: str, mirror: str = "") -> LabSystem:
    """Return a system by its name.

    Args:
        name: the name.
        mirror: URL of a mirror of the system's archive. Default: a SIMULATED system, or the controller's own mirror.

    Raises:
        LabError: it is unknown, or cannot be built from a mirror.
    """
    row = SYSTEMS.get(name)
    if row is None:
        raise LabError(f"unknown lab distribution {name}", remedy=f"Choose from {', '.join(system_names())}.")
    if mirror and row.archive.manager is not APT:
        raise LabError(
            f"{name}: nodes cannot be built from a mirror (its package manager is {row.archive.manager.name})",
            remedy="Remove --mirror: the lab simulates the system.",
        )
    if mirror or not row.stand_in:
        own = files_of(name)
        packages = (*row.archive.packages, *row.packages)
        return LabSystem(
            name, own.suite, row.archive.name, row.archive.areas, row.archive.kernel, packages, mirror=mirror
        )
    return _simulated(name, row, files_of(row.stand_in))


def _simulated(name: str, row: Row, files: Files) -> LabSystem:
    """Return a system that has the files of another one."""
    from provision.inventory.role_files import systems

    variables = systems(roles_folder())[row.variables]
    title, archive = variables["__platform_title"], files.archive
    programs = "dnf and rpm over " if row.rpm else ""
    python = python_program(row.rpm.python) if row.rpm and row.rpm.python else ""
    without = f"; without Python {row.rpm.python}" if row.rpm and row.rpm.python and not python else ""
    return LabSystem(
        name,
        files.suite,
        archive.name,
        archive.areas,
        archive.kernel if row.archive.kernel else "",
        (*archive.packages, *row.packages, *row.stand_in_packages),
        manager=row.archive.manager,
        rpm=row.rpm,
        setup=files.setup,
        python=python,
        files_of=files.title,
        title=title,
        os_release=_identity(row, variables, files.title),
        simulated=f"{title}: {programs}the files of {files.title} with the os-release of {title}{without}",
    )


def _identity(row: Row, variables: Mapping[str, str], files_of: str) -> str:
    """Return the text of os-release of a system, from its row and the content of its file of variables."""
    identity, _, version = row.variables.partition("_")
    title, suite = variables["__platform_title"], variables["__platform_repository_suite"]
    name = title.partition(version)[0].strip()
    release = row.rpm.release if row.rpm else version
    pairs = {
        "PRETTY_NAME": f"{title} (SIMULATED: files of {files_of})",
        "NAME": name,
        "VERSION_ID": release,
        "VERSION": f"{release}{title.removeprefix(f'{name} {version}')} (SIMULATED)",
        **({"PLATFORM_ID": f"platform:el{row.rpm.major}"} if row.rpm else {"VERSION_CODENAME": suite}),
        "ID": row.archive.identity or identity,
        "ID_LIKE": row.archive.like,
    }
    return "".join(f'{key}="{value}"\n' for key, value in pairs.items())
