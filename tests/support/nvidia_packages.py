"""Shell commands for Debian's packages of the NVIDIA driver, and for the kernels that they can be built for."""

from __future__ import annotations

__all__ = ["ADD_SECTIONS", "DRIVER_VERSION", "DRIVER_VERSIONS", "INSTALL", "INSTALLED", "release_kernel"]

ADD_SECTIONS = (
    "sed -i 's/^Components:.*/Components: main contrib non-free non-free-firmware/'"
    " /etc/apt/sources.list.d/debian.sources && apt-get -qq update"
)
"""What the site does on its nodes: these sections are not Debian's default."""
INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends >/dev/null 2>&1"
INSTALLED = "dpkg-query -W -f '${db:Status-Abbrev} ${Package}\\n' | grep -E '^i.*(nvidia|libcuda|dkms)' || true"
DRIVER_VERSION = "apt-cache show nvidia-open-kernel-dkms | sed -n 's/^Version: \\(.*\\)-[^-]*$/\\1/p' | head -n 1"
"""The version of the open modules. That of the libraries can be newer, and then has to be pinned to this one."""
DRIVER_VERSIONS = "apt-cache madison nvidia-kernel-dkms | cut -d'|' -f2 | tr -d ' ' | cut -d- -f1 | sort -uV"
"""The versions of the proprietary modules, of which the security archive has one, too."""


def release_kernel(flavor: str) -> str:
    """Return a command that prints the kernel of the last point release, for which its driver can be built.

    Kernels of the security archive can be newer than the open modules support.
    """
    name = f"linux-headers-{flavor}"
    version = f"$(apt-cache madison {name} | grep -v security | head -n 1 | cut -d'|' -f2 | tr -d ' ')"
    depends = "grep -m 1 ^Depends: | grep -oE 'linux-headers-[0-9][^ ,]*' | head -n 1"
    return f"apt-cache show {name}={version} | {depends} | sed s/^linux-headers-//"
