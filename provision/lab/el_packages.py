"""SIMULATED packages of Enterprise Linux: files of Debian under the names, dependencies and scripts of that system.

``provision/lab/files/el_node.py`` builds them while it makes the image of a node. Packages that these require, and that
are not listed here, have the names of Debian: their libraries are what other packages ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ElPackage:
    """One package."""

    name: str
    debs: tuple[str, ...] = ()
    """The packages of Debian with its files; those that the release lacks are ignored. The first has its version.

    If a node has all of them, it has the package.
    """
    files: tuple[str, ...] = ("*",)
    """Patterns of the paths that it takes from them; an earlier package takes a file before a later one."""
    is_vendors: bool = False
    """Whether it is in the repository of vendors, not in that of the system."""
    epoch: int = 0
    version: str = "1"
    """Its version if it has no files."""
    requires: tuple[str, ...] = ()
    """What it requires beyond the libraries of its programs and the packages of its debs."""
    provides: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    """Path of a symbolic link -> its target; for those that Debian makes in scripts."""
    group: str = ""
    """A group of the system that its installation creates."""
    with_dependencies: bool = True
    """Whether packages that its debs require in Debian are downloaded with them."""


_IPTABLES = "xtables-nft-multi"
_IPTABLES_LINKS = {
    f"/usr/sbin/{family}{part}": _IPTABLES for family in ("iptables", "ip6tables") for part in ("", "-save", "-restore")
}

PACKAGES: tuple[ElPackage, ...] = (
    ElPackage("ca-certificates", ("ca-certificates",)),
    ElPackage("iproute", ("iproute2",)),
    ElPackage("kmod", ("kmod",)),
    ElPackage("procps-ng", ("procps",)),
    ElPackage("sudo", ("sudo",)),
    ElPackage("device-mapper-libs", ("libdevmapper1.02.1",)),
    ElPackage("infiniband-diags", ("infiniband-diags",)),
    ElPackage("iptables-libs", ("libxtables12", "libip4tc2", "libip6tc2")),
    ElPackage("iptables-nft", ("iptables",), provides=("iptables",), links=_IPTABLES_LINKS),
    ElPackage("libibumad", ("libibumad3",)),
    ElPackage("libibverbs", ("libibverbs1", "ibverbs-providers")),
    ElPackage("libibverbs-utils", ("ibverbs-utils",), requires=("libibverbs",)),
    ElPackage("libmnl", ("libmnl0",)),
    ElPackage("libnetfilter_conntrack", ("libnetfilter-conntrack3",)),
    ElPackage("libnfnetlink", ("libnfnetlink0",)),
    ElPackage("libnftnl", ("libnftnl11",)),
    ElPackage("libnl3", ("libnl-3-200", "libnl-route-3-200")),
    ElPackage("librdmacm", ("librdmacm1", "librdmacm1t64")),
    ElPackage("pigz", ("pigz",)),
    ElPackage("python3-requests", ("python3-requests",)),
    ElPackage("rdma-core", ("rdma-core",)),
    ElPackage("make", ("make",)),
    ElPackage("dkms", ("dkms",), requires=("kmod", "make"), with_dependencies=False),  # the compiler is not in the lab
    ElPackage("container-selinux", version="2.229.0"),
    ElPackage("kernel-modules-extra", version="6.12.0"),
    ElPackage(
        "docker-ce-cli",
        ("docker-cli", "docker.io"),
        files=("/usr/bin/docker", "/usr/share/bash-completion/*/docker", "/usr/libexec/docker/cli-plugins/*"),
        is_vendors=True,
        epoch=1,
    ),
    ElPackage(
        "docker-ce",
        ("docker.io",),
        is_vendors=True,
        epoch=3,
        requires=("docker-ce-cli", "containerd.io", "container-selinux", "iptables"),
        group="docker",
    ),
    ElPackage("containerd.io", ("containerd", "runc"), is_vendors=True, provides=("containerd", "runc")),
    ElPackage("docker-buildx-plugin", ("docker-buildx",), is_vendors=True, version="0.14.1"),
)

UNUSED_DEBS = (
    "adduser",
    "debconf",
    "dpkg",
    "init-system-helpers",
    "libapparmor1",
    "lsb-base",
    "perl",
    "python3",
    "sysvinit-utils",
    "ucf",
)
"""Packages of Debian that others require there, and that have no counterpart or are on every node."""

IN_EVERY_NODE = (
    "bash",
    "coreutils",
    "crypto-policies",
    "dbus",
    "diffutils",
    "dnf",
    "filesystem",
    "findutils",
    "gawk",
    "glibc",
    "gnupg2",
    "grep",
    "gzip",
    "hostname",
    "openssh-clients",
    "openssh-server",
    "openssl-libs",
    "pam",
    "python3",
    "python3-dnf",
    "python3-libs",
    "rpm",
    "sed",
    "setup",
    "shadow-utils",
    "systemd",
    "systemd-libs",
    "systemd-udev",
    "tar",
    "util-linux",
    "xz",
    "yum",
)
"""Packages of Enterprise Linux whose files every node has: the package ``lab-base`` provides them."""
