"""Package managers of lab nodes: how the lab installs its own packages with them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PackageManager:
    """A package manager, and the format of its packages."""

    name: str
    """As in ``__platform_package_manager`` of the roles."""
    suffix: str
    """Of package files."""
    list_command: str
    """Shell command on a node that prints the file name of each installed package."""
    install_command: str
    """Shell command on a node that installs the package files after it, without repositories."""


APT = PackageManager("apt", ".deb", "dpkg-query -W -f '${Package}_${Version}_${Architecture}.deb\\n'", "dpkg --install")
DNF = PackageManager(
    "dnf", ".rpm", "rpm --query --all --queryformat '%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm\\n'", "rpm --upgrade"
)
